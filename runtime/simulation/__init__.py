"""The simulator: production's tasks, attempts, operators and state in an in-memory world, deterministic by a seed.

Read in this order: `model` (sources, sinks and operators of authors), `jobs` (random jobs and their oracle), `faults`,
`world` (clock, stores, target), `invariants`, `cluster` (tasks, channels and slots of an attempt), `driver` (the
effects of an attempt), `master` (attempts and restarts), `simulation` (the event loop).
"""
