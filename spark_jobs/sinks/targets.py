"""What the function of an `EpochStage` gets beside the rows, and what a target raises."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from runtime.errors import EnvironmentFailure, JobRejected


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
    _written: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    @contextmanager
    def written_once(self, target: str) -> Iterator[None]:
        """Around the write into `target`. A second write of the same epoch would be taken for a repeat, and skipped.

        Raises:
            JobRejected: this call of the function has written into `target` before.
        """
        if target in self._written:
            detail = f"the function writes into {target} twice in an epoch: unite its DataFrames, and write them once"
            raise JobRejected("written-twice", "function", detail)
        yield
        self._written.add(target)


class TargetAway(EnvironmentFailure):
    """The target cannot be reached now. The epoch is delivered again, after a pause; it counts as no failure."""
