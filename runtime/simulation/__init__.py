"""The simulator: the production core in an in-memory world, deterministic by a seed.

Read in this order: `model` (operators), `jobs` (random jobs and their oracle), `faults`, `world` (clock, stores,
target), `invariants`, `cluster` (subtasks, channels and slots of an attempt), `driver` (the coordinator's effects),
`master` (attempts and restarts), `simulation` (the event loop).
"""
