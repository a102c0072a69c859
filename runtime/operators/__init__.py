"""Operators: partitioning, functions, joins, windows, running aggregates, sinks.

Operators work on whole Arrow batches. Only row functions loop over rows.
"""
