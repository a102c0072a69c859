"""Effects of a subtask, in the order in which the task performs them before the machine's next event."""

from dataclasses import dataclass

from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.job.messages import Barrier, Control, Records
from runtime.core.snapshot.commit import CommitPermit
from runtime.core.snapshot.control import SubtaskReport


@dataclass(frozen=True, slots=True)
class ProcessRecords:
    """Hand the records to the operator."""

    channel: ChannelId
    records: Records


@dataclass(frozen=True, slots=True)
class AdvanceWatermark:
    """Fire event-time timers up to and including `time`."""

    time: int


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Send on every output channel, behind all records emitted so far. Never blocked by credits."""

    message: Control


@dataclass(frozen=True, slots=True)
class PreparePreBarrier:
    """Let the operator emit the rows that must precede the barrier."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CaptureState:
    """Copy the state now and store it in the background, which acknowledges or declines the checkpoint.

    `logs`: a log of feedback records belongs to the snapshot, so it is stored and answered at CloseLog. `inherits`: an
    earlier checkpoint to stop the job. The new log inherits that log, whose records the operator never saw.
    `overtakes`: rows in flight belong to the snapshot, so it is stored and answered at CompleteRecording.
    """

    barrier: Barrier
    finished: bool
    watermark: int
    logs: bool = False
    inherits: CheckpointId | None = None
    overtakes: bool = False


@dataclass(frozen=True, slots=True)
class RecordRows:
    """Add rows that the barrier has overtaken to its snapshot. The operator gets them later."""

    channel: ChannelId
    records: Records


@dataclass(frozen=True, slots=True)
class CompleteRecording:
    """All rows that the barrier has overtaken are recorded: store the snapshot with them."""


@dataclass(frozen=True, slots=True)
class DropRecording:
    """The checkpoint cannot complete: discard the recorded rows and the copied state."""


@dataclass(frozen=True, slots=True)
class LogFeedback:
    """Add the records to the logs of `checkpoints`."""

    checkpoints: tuple[CheckpointId, ...]
    records: Records


@dataclass(frozen=True, slots=True)
class CloseLog:
    """The log is complete: store it with the state that was copied at the barrier."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class DropLog:
    """The checkpoint was aborted: discard its log and the copied state."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class FlushLoop:
    """Let the operator emit its buffered rows without further input, so that the loop can terminate."""


@dataclass(frozen=True, slots=True)
class EndInput:
    """The data of input `input` has ended on all its channels."""

    input: int


@dataclass(frozen=True, slots=True)
class Finish:
    """All data has ended: let the operator emit its last rows. No output may follow."""


@dataclass(frozen=True, slots=True)
class BeginLive:
    """Every subtask of the source has read its share of the history: begin the live part."""


@dataclass(frozen=True, slots=True)
class CommitOutput:
    """Notify the operator that the checkpoint has completed; a sink commits."""

    permit: CommitPermit


@dataclass(frozen=True, slots=True)
class ForgetCheckpoint:
    """Notify the operator that the checkpoint was aborted."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Close:
    """Free the operator's resources."""


LoopEffect = LogFeedback | CloseLog | DropLog | FlushLoop
RecordingEffect = RecordRows | CompleteRecording | DropRecording
SubtaskEffect = (
    ProcessRecords
    | AdvanceWatermark
    | Broadcast
    | PreparePreBarrier
    | CaptureState
    | LoopEffect
    | RecordingEffect
    | EndInput
    | Finish
    | BeginLive
    | CommitOutput
    | ForgetCheckpoint
    | Close
    | SubtaskReport
)
