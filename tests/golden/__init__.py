"""A savepoint of every released format version: each must restore for ever.

`python -m tests.golden.make` wrote the newest one. None is written again: a new format gets a new folder.
"""
