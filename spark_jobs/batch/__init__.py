"""BATCH mode: the same `Dataflow` as a Spark plan, for bounded inputs.

refusals   checks that each operator of a job can run in BATCH, before any task starts
columns    the columns of each step, inferred in the driver
wire       Arrow rows as Spark columns, with their shuffle and sort columns
plan       a compiled job → stages in topological order; no Spark yet
subtask    the operators of a Spark task, run without channels and barriers
tasks      the code in `mapInArrow`: read, process, then pass rows to a tail
failures   errors of tasks, which name the operator
tails      the end of a task: rows for later stages, or files of a sink
late_rows  rows that STREAMING would drop, which are refused
counts     rows of each task, by operator and between stages, reported by tasks
execute    the stages as DataFrames; the committables of the sink tasks
progress   stages, tasks and records of a run
master     the job master of a run that the console started
run        a batch run from its start to the single commit at its end

Rows are shuffled by key group and sorted by key and event time. Each instance of a keyed operator processes a chunk:
all rows of some keys, about `tasks.CHUNK_ROWS`. So memory is bounded by a chunk or the largest key (FLIP-140).

The rows of an `EpochStage` are a single epoch, which the driver delivers behind the commit (`run`).

Broadcast inputs are processed completely before the first row of the main input, also for `connect_broadcast`.

The output equals that of STREAMING if no row is late and the program uses neither iteration nor processing time. (The
time limit of asynchronous requests is by the clock in both.) No function may depend on watermark positions between two
rows, on batch boundaries or on the order of floating-point additions. A program that breaks such a rule is refused
where the violation can be detected.
"""
