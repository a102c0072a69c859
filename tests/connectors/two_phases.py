"""Both phases of a sink, called as a slot and the job master call them. Rows have a column `n` of int64."""

import json
from typing import Any

import pyarrow as pa

from runtime.core.job.ids import CheckpointId, Token
from runtime.core.snapshot.commit import permit_from_master
from runtime.ports import OperatorContext, Sink, SinkCommitter, SinkWriter
from runtime.state.backend import SubtaskState

JOB = "job 1"


def writer(of: Sink, *, job: str = JOB, token: int = 1, uid: str = "out", index: int = 0) -> SinkWriter:
    """The open writer of a subtask of an attempt."""
    writer = of.writer()
    writer.open(
        OperatorContext(
            job=job, uid=uid, index=index, parallelism=4, max_parallelism=16, token=Token(token),
            state=SubtaskState(range(4), 16, None), now_ms=lambda: 0,
        )
    )  # fmt: skip
    return writer


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64())})


def prepared(sink_writer: SinkWriter, checkpoint: int, *numbers: int) -> list[Any]:
    """The committables of `numbers`, as a manifest returns them."""
    sink_writer.write(rows(*numbers))
    committables: list[Any] = json.loads(json.dumps(sink_writer.prepare(checkpoint)))
    return committables


def commit(of: Sink | SinkCommitter, *committables: Any, job: str = JOB, token: int = 1, checkpoint: int = 1) -> int:
    committer = of if isinstance(of, SinkCommitter) else of.committer()
    return committer.commit(permit_from_master(job, Token(token), CheckpointId(checkpoint)), committables)
