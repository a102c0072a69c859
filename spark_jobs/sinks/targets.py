"""The identity of an epoch, which the function of an `EpochStage` gets with the rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from runtime.errors import JobRejected


@dataclass(frozen=True)
class DeliveredEpoch:
    """The output of a sink between two checkpoints.

    A target that records (`source`, `number`) in its own commit can detect a repeated epoch.

    Args:
        source: identifies the sequence of epochs; a job that starts without a checkpoint has a new source.
        number: from 1, without gaps, in order.
        job, sink: the job and the uid of the sink, as in file names.
        rows: number of rows that the slots wrote.
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
        """Context of the write into `target`. A second write in the same epoch would be skipped as a repetition.

        Raises:
            JobRejected: this call of the function has already written into `target`.
        """
        if target in self._written:
            detail = f"the function writes into {target} twice in an epoch: unite its DataFrames and write them once"
            raise JobRejected("written-twice", "function", detail)
        yield
        self._written.add(target)
