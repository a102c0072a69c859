"""Committed epochs that await delivery by a sink's PySpark stage: they pause sources and delay the end of a run."""

from collections.abc import Iterable, Mapping

from runtime.core.job.ids import OperatorId
from runtime.ports import DeliversEpochs, Sink


class DeliveryBacklog:
    """Undelivered epochs of all sinks with a stage."""

    def __init__(self, sinks: Mapping[OperatorId, Sink]) -> None:
        self._sinks = {uid: sink for uid, sink in sinks.items() if isinstance(sink, DeliversEpochs)}

    @property
    def has_sinks(self) -> bool:
        """Whether the job has such a sink."""
        return bool(self._sinks)

    def is_too_large(self) -> bool:
        """Whether sources must be paused. Does I/O."""
        return any(sink.backlog() > sink.max_backlog for sink in self._sinks.values())

    def undelivered_epochs(self) -> Mapping[OperatorId, int]:
        """Number of undelivered epochs per sink that has any. Does I/O."""
        return dict(self._backlog_sizes())

    def _backlog_sizes(self) -> Iterable[tuple[OperatorId, int]]:
        return ((uid, count) for uid, sink in self._sinks.items() if (count := sink.backlog()))
