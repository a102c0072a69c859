"""BATCH mode: the same `Dataflow` as a Spark plan, for bounded inputs.

refusals   what cannot run in BATCH, refused by operator before anything starts
columns    the columns of every step, found in the driver
wire       Arrow rows as Spark columns, with what they are dealt and sorted by
plan       a compiled job → stages in topological order; no Spark yet
subtask    operators of one task, driven without channels and barriers
tasks      what runs in `mapInArrow`: read, process, and write or deal
counts     rows of each task, by operator, as tasks report them
execute    the stages as DataFrames; what sink tasks have prepared
progress   stages, tasks and records of a run
master     the job master of a run that the console started
run        a batch run from the start to the one commit at its end

Rows are dealt by the owner of their key group and sorted by key and event time; a fresh operator takes about
`tasks.CHUNK_ROWS` rows of whole keys, so memory is bounded by a chunk or the largest key (FLIP-140).

Broadcast inputs come whole and before the first row, also the rows of `connect_broadcast`.

The answer is that of STREAMING for programs without iteration and processing time and whose rows are not late, if no
function depends on where a watermark falls between two rows, on how rows are cut into batches, or on the order in which
floating-point numbers are added up. Others are refused where that can be seen.
"""
