"""What the function of an `EpochStage` gets beside the rows, and what a target raises."""

from dataclasses import dataclass

from runtime.errors import EnvironmentFailure


@dataclass(frozen=True)
class DeliveredEpoch:
    """What one sink has committed with one checkpoint.

    A target that records (`source`, `number`) in its own commit can tell an epoch that comes again.

    Args:
        source: identifies the sequence of epochs: a job that starts anew, without a checkpoint, has another one.
        number: from 1, without gaps, in order.
        job, sink: the job and the uid of the sink, as in file names.
        rows: as written by the slots.
    """

    source: str
    number: int
    job: str
    sink: str
    checkpoint: int
    rows: int


class TargetAway(EnvironmentFailure):
    """The target cannot be reached now. The epoch is delivered again, after a pause; it counts as no failure."""
