"""The loop part of a subtask: feedback records, their log for checkpoints, and termination detection.

It combines `FeedbackAlignment` and `TerminationDetector` and returns effects; `Subtask` handles barriers, watermarks
and its own end. A subtask outside loops, or finished before the restore, has no back-edges: it logs no records and
sends no markers.
"""

from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.job.messages import Barrier, Records, TerminationMarker
from runtime.core.subtask.effects import (
    Broadcast,
    CaptureState,
    CloseLog,
    DropLog,
    FlushLoop,
    LogFeedback,
    ProcessRecords,
    SubtaskEffect,
)
from runtime.core.subtask.feedback_alignment import FeedbackAlignment
from runtime.core.subtask.spec import SubtaskSpec
from runtime.core.subtask.termination import TerminationDetector
from runtime.errors import WeirError

Effects = list[SubtaskEffect]


class Iteration:
    """Mutable, owned by a subtask."""

    def __init__(self, spec: SubtaskSpec) -> None:
        place = None if spec.finished_on_restore else spec.loop
        self.channels = place.back if place is not None else frozenset()
        self.replaying = False  #: the host must replay the restored log before any message
        self._uid = spec.id.operator
        self._feedback = FeedbackAlignment(self.channels, waits=spec.mode is CheckpointMode.EXACTLY_ONCE)
        self._detector = (
            None if place is None else TerminationDetector(place, set(spec.regular_channels) - place.inside)
        )
        self._end_checkpoint: CheckpointId | None = None  #: the stop or drain whose barrier has been sent

    def is_readable(self, channel: ChannelId) -> bool:
        return self._feedback.is_readable(channel)

    # ------------------------------------------------------------ records

    def on_replay(self, records: Records) -> Effects:
        assert self.replaying, "the log is replayed before anything else"
        return [ProcessRecords(min(self.channels), records)]

    def on_records(self, channel: ChannelId, records: Records, *, over: bool) -> Effects:
        """Logs and processes feedback records. `over`: termination was detected.

        Raises:
            WeirError: feedback records arrived after termination, because an operator in the loop broke its contract.
        """
        if over:
            raise WeirError(
                f"records came back into {self._uid!r} after the end of its loop: an operator in the loop must emit "
                "buffered rows in `settle`, not at the end of its input"
            )
        checkpoints = self._feedback.logs_of(channel)
        if self._end_checkpoint is not None:  # feedback behind its barrier: replayed after a restore
            overtaken = tuple(checkpoint for checkpoint in checkpoints if checkpoint != self._end_checkpoint)
            return [LogFeedback((*overtaken, self._end_checkpoint), records)]
        if self._detector is not None:  # pragma: no branch  (a subtask with back-edges is in a loop)
            self._detector.on_feedback()
        log: Effects = [LogFeedback(checkpoints, records)] if checkpoints else []
        return [*log, ProcessRecords(channel, records)]

    # ------------------------------------------------------------ checkpoints

    def capture(self, barrier: Barrier, *, finished: bool, watermark: int) -> Effects:
        """The snapshot at `barrier`, which has just been broadcast. Feedback records are logged for it from now on."""
        checkpoint, logs = barrier.checkpoint, bool(self.channels)
        capture = CaptureState(barrier, finished, watermark, logs=logs, inherits=self._end_checkpoint)
        if (
            self._end_checkpoint is not None
        ):  # a stop is planned again: the coordinator has given up its first checkpoint
            self._feedback.abort(self._end_checkpoint)
        complete = self._feedback.begin_log(checkpoint)
        if logs and barrier.kind.ends_job:
            self._end_checkpoint = checkpoint
        return [capture, CloseLog(checkpoint)] if logs and complete else [capture]

    def on_barrier(self, channel: ChannelId, checkpoint: CheckpointId) -> Effects:
        """The barrier arrived on a back-edge."""
        return [CloseLog(checkpoint)] if self._feedback.on_barrier(channel, checkpoint) else []

    def on_partition_end(self, channel: ChannelId) -> Effects:
        return [CloseLog(checkpoint) for checkpoint in self._feedback.on_channel_end(channel)]

    def is_logging(self, checkpoint: CheckpointId) -> bool:
        return self._feedback.is_logging(checkpoint)

    def abort(self, checkpoint: CheckpointId) -> Effects:
        """Drops the log of an aborted checkpoint. The log of a stop stays: the next attempt to stop inherits it."""
        logged = self._feedback.abort(checkpoint)
        return [DropLog(checkpoint)] if logged and checkpoint != self._end_checkpoint else []

    # ------------------------------------------------------------ termination

    @property
    def is_entry(self) -> bool:
        """Whether this subtask is the entry, which must detect termination before its data ends."""
        return self._detector is not None and self._detector.place.is_entry

    @property
    def is_quiescing(self) -> bool:
        """True once termination has been detected tentatively: only operators that still buffer rows may emit."""
        return self._detector is not None and self._detector.is_quiescing

    @property
    def is_terminated(self) -> bool:
        """True once termination has been detected: no record is in flight in the loop."""
        return self._detector is not None and self._detector.is_terminated

    def on_marker(self, channel: ChannelId, probe: TerminationMarker) -> None:
        if self._detector is not None:
            self._detector.on_marker(channel, probe)

    def on_data_end(self, channel: ChannelId) -> None:
        if self._detector is not None:
            self._detector.on_channel_end(channel)

    def emit_markers(self) -> Effects:
        """Sends every marker that is due, each after the operator has emitted its buffered rows."""
        effects: Effects = []
        while self._detector is not None and (probe := self._detector.next_marker()) is not None:
            effects += [FlushLoop(), Broadcast(probe)]
        return effects
