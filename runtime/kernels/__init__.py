"""Compiled inner loops over Arrow buffers and numpy arrays: hashes, key tables, folds.

Each kernel has a twin in numpy at its only caller. `loading.native` returns the compiled kernels, or None where they
cannot be compiled: callers then use their twin, with the same results. Nothing here is compiled at import.
"""
