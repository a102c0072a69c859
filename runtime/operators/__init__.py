"""What happens to batches on their way: partitioning, row functions, joins, windows, running aggregates, the sink's step.

Everything works on whole Arrow batches; only `FlatMapRows` loops over rows, because it calls a row function.
"""
