"""Committed epochs that wait for the PySpark stage of a sink: they hold the sources, and the end of the run."""

from collections.abc import Iterable, Mapping

from runtime.core.ids import OperatorId
from runtime.ports import DeliversEpochs, Sink


class Backlog:
    """Of the sinks of a job that a stage delivers."""

    def __init__(self, sinks: Mapping[OperatorId, Sink]) -> None:
        self._sinks = {uid: sink for uid, sink in sinks.items() if isinstance(sink, DeliversEpochs)}

    @property
    def is_possible(self) -> bool:
        """Whether the job has such a sink."""
        return bool(self._sinks)

    def too_large(self) -> bool:
        """Whether sources must not be read. Does I/O."""
        return any(sink.backlog() > sink.max_backlog for sink in self._sinks.values())

    def waiting(self) -> Mapping[OperatorId, int]:
        """Epochs that wait, by sink, for those where some do. Does I/O."""
        return dict(self._found())

    def _found(self) -> Iterable[tuple[OperatorId, int]]:
        return ((uid, count) for uid, sink in self._sinks.items() if (count := sink.backlog()))
