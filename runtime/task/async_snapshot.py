"""Asynchronous part of a snapshot: writes the state captured at a barrier and reports the result to the machine.

Equivalent of Flink's `AsyncCheckpointRunnable`. It runs off the slot's loop and shares no mutable data with it. The
`Capture` determines the format of state files.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec
import pyarrow as pa

from runtime.core.job.ids import SubtaskId
from runtime.core.snapshot.control import Acknowledgement, Decline, SnapshotAnswer
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.core.snapshot.manifest import folder_of
from runtime.errors import WeirError
from runtime.ports import Clock, OperatorContext, SnapshotStore
from runtime.task.feedback_log import CapturedSnapshot, FeedbackLog
from runtime.task.rows_in_flight import RecordedRows


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncSnapshot:
    subtask: SubtaskId
    context: OperatorContext  #: its token changes when a kept slot continues in another attempt
    store: SnapshotStore
    clock: Clock
    submit_compaction: Callable[[Callable[[], None]], None]  #: runs the compaction of state files off the loop

    def write(self, copied: CapturedSnapshot, log: FeedbackLog, recorded: RecordedRows | None) -> SnapshotAnswer:
        """Stores captured state, feedback log and rows in flight. A failure fails only the checkpoint of `copied`."""
        started = self.clock.monotonic_ms()
        barrier, place = copied.barrier, f"{self.subtask.operator}-{self.subtask.index}"
        folder = f"{folder_of(barrier.kind, barrier.checkpoint, self.context.token)}/{place}"
        try:
            stored, written = copied.capture.write(self.store, folder)
            feedback = log.write(self.store, f"{folder}.loop", self.context.max_parallelism)
            in_flight = () if recorded is None else recorded.write(self.store, f"{folder}.flight")
        except (WeirError, OSError, pa.ArrowException) as error:
            return Decline(barrier.checkpoint, FailureReason.ASYNC_FAILED, f"{type(error).__name__}: {error}")
        snapshot = msgspec.structs.replace(
            copied.rest,
            keyed=stored.keyed,
            broadcast=stored.broadcast,
            lists=stored.lists,
            unions=stored.unions,
            feedback=feedback,
            value_types=stored.value_types,
            empty_tables=stored.empty_tables,
            proofs=stored.proofs,
            in_flight=in_flight,
        )
        written += sum(segment.nbytes for segment in (*feedback, *(s for rows in in_flight for s in rows.segments)))
        async_ms = self.clock.monotonic_ms() - started
        if not barrier.kind.is_savepoint:
            self.submit_compaction(partial(copied.capture.compact, self.store, folder))
        measured = msgspec.structs.replace(copied.timings, async_ms=async_ms, written_bytes=written)
        return Acknowledgement(barrier.checkpoint, snapshot, measured)
