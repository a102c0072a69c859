"""A subtask's part in a loop: what its back-edges bring, what of that is logged, and how the loop's end is proven.

It puts the machines of `feedback` and `probing` together and says what follows for the subtask, which knows barriers,
time and its own end. A subtask that stands in no loop, or is skipped, has a part in which nothing ever happens.
"""

from runtime.core.checkpoint import CheckpointMode
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
from runtime.core.feedback import BackEdges
from runtime.core.ids import ChannelId, CheckpointId
from runtime.core.messages import Barrier, Probe, Records
from runtime.core.probing import Probing
from runtime.core.spec import SubtaskSpec
from runtime.errors import WeirError

Effects = list[SubtaskEffect]


class LoopSide:
    """Mutable, owned by one subtask machine."""

    def __init__(self, spec: SubtaskSpec) -> None:
        place = None if spec.finished_on_restore else spec.loop
        self.channels = place.back if place is not None else frozenset()
        self.replaying = False  #: the host must give it the restored log first
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
        """What came round is logged and handled; `over` says that the loop has been proven to be at its end."""
        if over:
            raise WeirError(
                f"records came back into {self._uid!r} after the end of its loop: an operator in it must put out what "
                "it holds back in `settle`, not at the end of its input"
            )
        checkpoints = self._edges.logging(channel)
        if self._sealed is not None:  # nothing may be emitted behind this barrier: they go on after a restore
            overtaken = tuple(checkpoint for checkpoint in checkpoints if checkpoint != self._sealed)
            return [LogFeedback((*overtaken, self._sealed), records)]
        if self._probing is not None:  # pragma: no branch  (whoever has back-edges stands in a loop)
            self._probing.heard()
        log: Effects = [LogFeedback(checkpoints, records)] if checkpoints else []
        return [*log, Process(channel, records)]

    # ------------------------------------------------------------ checkpoints

    def capture(self, barrier: Barrier, *, finished: bool, watermark: int) -> Effects:
        """The snapshot at `barrier`, which has just been sent: from now on what comes round is logged for it."""
        checkpoint, logs = barrier.checkpoint, bool(self.channels)
        capture = CaptureState(barrier, finished, watermark, logs=logs, inherits=self._sealed)
        if self._sealed is not None:  # a stop that is planned anew: the first was given up, known here or not
            self._edges.give_up(self._sealed)
        complete = self._edges.begin(checkpoint)
        if logs and barrier.kind.ends_job:
            self._sealed = checkpoint
        return [capture, CloseLog(checkpoint)] if logs and complete else [capture]

    def returned(self, channel: ChannelId, checkpoint: CheckpointId) -> Effects:
        """The barrier has come round."""
        return [CloseLog(checkpoint)] if self._edges.returned(channel, checkpoint) else []

    def partition_ended(self, channel: ChannelId) -> Effects:
        return [CloseLog(checkpoint) for checkpoint in self._edges.ended(channel)]

    def is_logging(self, checkpoint: CheckpointId) -> bool:
        return self._edges.is_open(checkpoint)

    def give_up(self, checkpoint: CheckpointId) -> Effects:
        """The checkpoint is not to be. What a stop has logged stays: its next try takes it over."""
        logged = self._edges.give_up(checkpoint)
        return [DropLog(checkpoint)] if logged and checkpoint != self._sealed else []

    # ------------------------------------------------------------ the end of the loop

    @property
    def must_prove(self) -> bool:
        """Whether the loop may go round when all inputs have ended, and it is for this subtask to prove that not."""
        return self._probing is not None and self._probing.place.is_entry

    @property
    def still(self) -> bool:
        """Whether the loop is so near to its end that only what has rows inside may put anything into it."""
        return self._probing is not None and self._probing.still

    @property
    def quiet(self) -> bool:
        """Proven: nothing is on its way in the loop."""
        return self._probing is not None and self._probing.quiet

    def probed(self, channel: ChannelId, probe: Probe) -> None:
        """A probe came; from another loop it says nothing here."""
        if self._probing is not None:
            self._probing.said(channel, probe)

    def data_ended(self, channel: ChannelId) -> None:
        """The data of a channel has truly ended."""
        if self._probing is not None:
            self._probing.ended(channel)

    def probes(self) -> Effects:
        """Those that are due."""
        effects: Effects = []
        while self._probing is not None and (probe := self._probing.advance()) is not None:
            effects += [Settle(), Broadcast(probe)]
        return effects
