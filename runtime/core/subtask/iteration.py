"""The loop part of a subtask: feedback records, their log for checkpoints, and termination detection.

It combines `BackEdges` and `Probing` and returns effects; `Subtask` keeps barriers, watermarks and its own end. A
subtask outside loops, or finished before the restore, has no back-edges: it logs no records and sends no markers.
"""

from runtime.core.effects import (
    Broadcast,
    CaptureState,
    CloseLog,
    DropLog,
    LogFeedback,
    Process,
    Settle,
    SubtaskEffect,
)
from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.job.messages import Barrier, Probe, Records
from runtime.core.subtask.feedback_alignment import BackEdges
from runtime.core.subtask.spec import SubtaskSpec
from runtime.core.subtask.termination import Probing
from runtime.errors import WeirError

Effects = list[SubtaskEffect]


class LoopSide:
    """Mutable, owned by a subtask."""

    def __init__(self, spec: SubtaskSpec) -> None:
        place = None if spec.finished_on_restore else spec.loop
        self.channels = place.back if place is not None else frozenset()
        self.replaying = False  #: the host must replay the restored log before any message
        self._uid = spec.id.operator
        self._edges = BackEdges(self.channels, waits=spec.mode is CheckpointMode.EXACTLY_ONCE)
        self._probing = None if place is None else Probing(place, set(spec.regular) - place.inside)
        self._sealed: CheckpointId | None = None  #: the barrier of a stop or drain has been sent

    def readable(self, channel: ChannelId) -> bool:
        return self._edges.readable(channel)

    # ------------------------------------------------------------ records

    def replayed(self, records: Records) -> Effects:
        assert self.replaying, "the log is replayed before anything else"
        return [Process(min(self.channels), records)]

    def records(self, channel: ChannelId, records: Records, *, over: bool) -> Effects:
        """Logs and processes feedback records. `over`: termination was detected.

        Raises:
            WeirError: feedback records arrived after termination, because an operator in the loop broke its contract.
        """
        if over:
            raise WeirError(
                f"records came back into {self._uid!r} after the end of its loop: an operator in the loop must emit "
                "buffered rows in `settle`, not at the end of its input"
            )
        checkpoints = self._edges.logging(channel)
        if self._sealed is not None:  # no record may follow this barrier: they are replayed after a restore
            overtaken = tuple(checkpoint for checkpoint in checkpoints if checkpoint != self._sealed)
            return [LogFeedback((*overtaken, self._sealed), records)]
        if self._probing is not None:  # pragma: no branch  (a subtask with back-edges is in a loop)
            self._probing.heard()
        log: Effects = [LogFeedback(checkpoints, records)] if checkpoints else []
        return [*log, Process(channel, records)]

    # ------------------------------------------------------------ checkpoints

    def capture(self, barrier: Barrier, *, finished: bool, watermark: int) -> Effects:
        """The snapshot at `barrier`, which has just been broadcast. Feedback records are logged for it from now on."""
        checkpoint, logs = barrier.checkpoint, bool(self.channels)
        capture = CaptureState(barrier, finished, watermark, logs=logs, inherits=self._sealed)
        if self._sealed is not None:  # a stop is planned again: the coordinator has given up its first checkpoint
            self._edges.give_up(self._sealed)
        complete = self._edges.begin(checkpoint)
        if logs and barrier.kind.ends_job:
            self._sealed = checkpoint
        return [capture, CloseLog(checkpoint)] if logs and complete else [capture]

    def returned(self, channel: ChannelId, checkpoint: CheckpointId) -> Effects:
        """The barrier arrived on a back-edge."""
        return [CloseLog(checkpoint)] if self._edges.returned(channel, checkpoint) else []

    def partition_ended(self, channel: ChannelId) -> Effects:
        return [CloseLog(checkpoint) for checkpoint in self._edges.ended(channel)]

    def is_logging(self, checkpoint: CheckpointId) -> bool:
        return self._edges.is_open(checkpoint)

    def give_up(self, checkpoint: CheckpointId) -> Effects:
        """Drops the log of an aborted checkpoint. The log of a stop stays: the next attempt to stop inherits it."""
        logged = self._edges.give_up(checkpoint)
        return [DropLog(checkpoint)] if logged and checkpoint != self._sealed else []

    # ------------------------------------------------------------ termination

    @property
    def must_prove(self) -> bool:
        """Whether this subtask is the entry, which must detect termination before its data ends."""
        return self._probing is not None and self._probing.place.is_entry

    @property
    def still(self) -> bool:
        """True once termination has been detected tentatively: only operators that still buffer rows may emit."""
        return self._probing is not None and self._probing.still

    @property
    def quiet(self) -> bool:
        """True once termination has been detected: no record is in flight in the loop."""
        return self._probing is not None and self._probing.quiet

    def probed(self, channel: ChannelId, probe: Probe) -> None:
        if self._probing is not None:
            self._probing.said(channel, probe)

    def data_ended(self, channel: ChannelId) -> None:
        if self._probing is not None:
            self._probing.ended(channel)

    def probes(self) -> Effects:
        """Sends every marker that is due, each after the operator has emitted its buffered rows."""
        effects: Effects = []
        while self._probing is not None and (probe := self._probing.advance()) is not None:
            effects += [Settle(), Broadcast(probe)]
        return effects
