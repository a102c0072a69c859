"""The barrier runtime: globally consistent snapshots for streaming jobs on Spark.

Read in this order: `core` (protocol decisions, sans I/O), `ports` (protocols of the outside world), `state` and
`operators` (the parts of a job), `dataflow` (the API of a job), `connectors` and `io` (implementations of the ports),
`task` (a subtask without threads), `slot`, `master` and `launch` (processes and threads), `simulation` (the simulator).

This file has no imports: `import runtime.core.x` must stay cheap for the console.
"""
