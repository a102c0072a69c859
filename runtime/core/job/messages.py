"""What travels on a channel, in order: records, and the control messages between them.

Barriers, watermarks and end events are in band: they never pass a record and no record passes them. The core does not
know what a record is: `Records.payload` is an Arrow batch in production and anything in the simulator.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from runtime.core.job.ids import CheckpointId

MAX_WATERMARK: Final = 2**63 - 1  #: "no record will follow"; event time is int64 milliseconds since the epoch
MIN_WATERMARK: Final = -(2**63)


class CheckpointKind(StrEnum):
    """Why a checkpoint is taken, which decides what follows its completion."""

    CHECKPOINT = "checkpoint"  #: periodic or asked for; used for recovery; completion is notified
    SAVEPOINT = "savepoint"  #: kept for people; notifies nobody, never used for failure recovery
    STOP = "stop"  #: savepoint, then the job ends; no watermark, no `finish`; completion is notified
    DRAIN = "drain"  #: maximum watermark, `finish`, savepoint, then the job ends for good

    @property
    def is_savepoint(self) -> bool:
        return self is not CheckpointKind.CHECKPOINT

    @property
    def ends_job(self) -> bool:
        return self in (CheckpointKind.STOP, CheckpointKind.DRAIN)


@dataclass(frozen=True, slots=True)
class Records:
    """A batch of records. `nbytes` is what flow control charges."""

    payload: Any
    rows: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Barrier:
    """Cuts the stream: what is before it belongs to checkpoint `checkpoint`, what is behind it does not."""

    checkpoint: CheckpointId
    kind: CheckpointKind
    triggered_at: int  #: milliseconds since the epoch, by the coordinator's clock


@dataclass(frozen=True, slots=True)
class CancelBarrier:
    """Sent by a task that cannot take part: whoever aligns for `checkpoint` gives it up."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Watermark:
    """No record with an event time at or below `time` will follow on this channel (late ones excepted)."""

    time: int


@dataclass(frozen=True, slots=True)
class Idle:
    """This channel will bring no records for a while: leave it out of the minimum until it speaks again.

    A watermark ends it, at latest the one that goes out before the next records; it need not have risen.
    """


@dataclass(frozen=True, slots=True)
class EndOfData:
    """The sender has finished its own logic. `drain` is false at a stop without drain."""

    drain: bool


@dataclass(frozen=True, slots=True)
class EndOfPartition:
    """The last message of a channel. A channel that closes without it has failed."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Goes round a loop whose inputs have ended; see `probing`. `quiet`: for how many rounds nothing came round."""

    round: int
    quiet: int


Control = Barrier | CancelBarrier | Watermark | Idle | EndOfData | EndOfPartition | Probe
Message = Records | Control
