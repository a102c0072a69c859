"""Operators with two-phase commit between a writer and a committer, at the end of a stream or within it.

The committables that the writer prepares before a barrier belong to that checkpoint. They are committed when this or
a later checkpoint has completed, and are part of every checkpoint until then. A restored subtask starts without
committables: the job master commits the committables of the restored checkpoint before it deploys the job.

Some committers commit in the job master only (`SinkCommitter.commits_in_master`). The master notifies the slots of a
checkpoint after it has committed all output of it, so an operator then only drops its committables.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from runtime.core.snapshot.commit import CommitPermit
from runtime.ports import Collector, Operator, OperatorContext, Sink
from runtime.state.list_state import encode_values
from runtime.state.own_memory import with_own_memory


class SinkOperator(Operator):
    """Writes rows, prepares committables and commits them."""

    def __init__(self, sink: Sink) -> None:
        self._writer = sink.writer()
        self._committer = sink.committer()
        self._prepared: list[tuple[int, Any]] = []  #: (checkpoint, committable), oldest first
        self._rows = 0  #: written since the start
        self._prepared_rows: list[tuple[int, int]] = [(0, 0)]  #: (checkpoint, `_rows` at its barrier), oldest first

    def open(self, context: OperatorContext) -> None:
        self._writer.open(context)

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        self._writer.write(with_own_memory(batch))  # the writer may hold the rows until a barrier
        self._rows += batch.num_rows

    def open_results(self) -> Mapping[str, int]:
        return {"rows": self._rows - self._prepared_rows[0][1]}

    def next_processing_timer(self) -> int | None:
        return self._writer.next_processing_timer()

    def on_processing_time(self, now_ms: int, out: Collector) -> None:
        self._writer.on_processing_time(now_ms)

    def finish(self, out: Collector) -> None:
        self._writer.finish()

    def prepare_snapshot_pre_barrier(self, checkpoint: int, out: Collector) -> None:
        self._prepared_rows.append((checkpoint, self._rows))
        committables = self._writer.prepare(checkpoint)
        encode_values("committables", list(committables))  # the error names the operator here
        self._prepared += [(checkpoint, committable) for committable in committables]

    def checkpoint_completed(self, permit: CommitPermit) -> None:
        due = [committable for checkpoint, committable in self._prepared if checkpoint <= permit.checkpoint]
        if due and not self._committer.commits_in_master:
            self._committer.commit(permit, due)
        self._prepared = [entry for entry in self._prepared if entry[0] > permit.checkpoint]
        last = max(rows for checkpoint, rows in self._prepared_rows if checkpoint <= permit.checkpoint)
        later = [entry for entry in self._prepared_rows if entry[0] > permit.checkpoint]
        self._prepared_rows = [(permit.checkpoint, last), *later]

    def committables(self) -> tuple[Any, ...]:
        return tuple(committable for _, committable in self._prepared)

    def close(self) -> None:
        self._writer.close()


class WriteThrough(SinkOperator):
    """Writes rows as a sink does, and forwards them.

    Operators downstream receive a row before its checkpoint completes. Several consecutive operators of this kind
    prepare for the same barrier, so their output belongs to the same checkpoint.
    """

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        super().process(input, batch, out)
        out.emit(batch)
