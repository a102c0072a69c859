"""Compiled inner loops over Arrow buffers and numpy arrays: hashes, key tables, folds, JSON rows.

`loading.native` returns the compiled kernels, or None where they cannot be compiled. Each caller then uses numpy, or
Arrow for JSON, with the same results. Nothing here is compiled at import.
"""
