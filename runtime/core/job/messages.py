"""The messages of a channel: records, and the control messages between them.

Barriers, watermarks and end events are in band: they never overtake a record, and no record overtakes them. The core
does not look into `Records.payload`: an Arrow batch in production, a list in the simulator.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from runtime.core.job.ids import CheckpointId

MAX_WATERMARK: Final = 2**63 - 1  #: "no record will follow"; event time is int64 milliseconds since the epoch
MIN_WATERMARK: Final = -(2**63)


class CheckpointKind(StrEnum):
    """The purpose of a checkpoint, which decides the steps after its completion."""

    CHECKPOINT = "checkpoint"  #: periodic or requested; used for recovery; completion is notified
    SAVEPOINT = "savepoint"  #: owned by the user; completion is not notified; never used for failure recovery
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
    """A batch of records. `nbytes`: the size that flow control charges.

    `split` and `end`: rows up to row number `end` of this split of the source; 0: the rows have no numbers. A negative
    `end`: further batches with rows up to row `-end` follow on the channel. `keys`: of numbered rows, the sum of the
    hashes of their keys, modulo 2**64.
    """

    payload: Any
    rows: int
    nbytes: int
    split: str = ""
    end: int = 0
    keys: int = 0


@dataclass(frozen=True, slots=True)
class Barrier:
    """Cuts the stream: records before the barrier belong to `checkpoint`, records behind it do not."""

    checkpoint: CheckpointId
    kind: CheckpointKind
    triggered_at: int  #: milliseconds since the epoch, by the coordinator's clock


@dataclass(frozen=True, slots=True)
class CancelBarrier:
    """Sent by a subtask that cannot take part: downstream subtasks abort the alignment of `checkpoint`."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class Watermark:
    """No record with an event time at or below `time` (ms) will follow on this channel, except late records."""

    time: int


@dataclass(frozen=True, slots=True)
class Idle:
    """The channel is idle, at watermark `time`. A watermark, not necessarily a higher one, precedes the next records.

    A receiver leaves an edge out of the minimum while all its channels are idle (`core.subtask.watermark_valve`).
    """

    time: int = MIN_WATERMARK


@dataclass(frozen=True, slots=True)
class EndOfData:
    """The sender has finished its logic.

    `drain`: all data has ended; false at a stop with savepoint. `job_drains`: a drain of the job has ended the data, so
    that every other channel ends too.
    """

    drain: bool
    job_drains: bool = False


@dataclass(frozen=True, slots=True)
class EndOfPartition:
    """The last message of a channel. A channel that closes without it has failed."""


@dataclass(frozen=True, slots=True)
class TerminationMarker:
    """Circulates in a loop whose inputs have ended. `quiet`: rounds without feedback records."""

    round: int
    quiet: int


Control = Barrier | CancelBarrier | Watermark | Idle | EndOfData | EndOfPartition | TerminationMarker
Message = Records | Control
