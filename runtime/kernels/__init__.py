"""Compiled inner loops over Arrow buffers and numpy arrays: hashes, key tables, folds, JSON rows.

`loading.native` returns the compiled kernels. Nothing here is compiled at import.
"""
