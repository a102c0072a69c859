"""The identity of an epoch, which the function of an `EpochStage` gets with the rows."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from runtime.errors import JobRejected
from runtime.ports import OutputEpoch


@dataclass(frozen=True)
class DeliveredEpoch(OutputEpoch):
    """The output of a sink between two checkpoints.

    A target that records (`source`, `number`) in its own commit can detect a repeated epoch. `rows` counts the rows
    that the slots wrote.
    """

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
