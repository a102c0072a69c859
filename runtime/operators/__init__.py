"""What happens to batches on their way: partitioning, functions, joins, windows, running aggregates, sinks.

Everything works on whole Arrow batches; only `FlatMapRows` loops over rows, because it calls a row function.
"""
