"""The state of a checkpoint, read without its job (Flink's State Processor API).

rows     opens a checkpoint; the rows of a state as Arrow batches
keys     key groups of given keys
changes  keys that were added, changed and removed between two checkpoints
source   the Spark data source `weir-state`
query    a page of rows, or saved SQL, as a table for people
stage    the program that answers a query for the console
"""
