"""The barrier runtime: globally consistent snapshots for streaming jobs on Spark.

Read in this order: `core` (decides, no I/O), `ports` (the roles the outside world plays), `state` and `operators`
(what a job is made of), `dataflow` (how a job is written), `connectors` and `io` (the outside world made real),
`hosts` (places where it all runs), `testing` (the simulator).

This file imports nothing: `import runtime.core.x` must stay cheap for the console.
"""
