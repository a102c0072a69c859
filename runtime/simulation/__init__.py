"""The simulator: the production core in an in-memory world, under one seed. Shipped, because job authors need it too.

Read: model (operators), jobs (random jobs and their oracle), world (stores, target, clock, faults), invariants (the
laws), cluster (subtasks, channels, slots of one attempt), master (attempts, restarts), simulation (the loop and the
command line).
"""
