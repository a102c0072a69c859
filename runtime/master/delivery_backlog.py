"""Committed epochs that await delivery by a sink's PySpark stage: they pause sources and delay the end of a run."""

from collections.abc import Mapping
from pathlib import Path

from runtime.connectors.commit_log import CommitLog
from runtime.connectors.names import decode_name, encode_name
from runtime.connectors.sinks.epoch_stage import EpochStage
from runtime.connectors.sinks.write_ahead import WriteAheadSink
from runtime.core.job.ids import OperatorId
from runtime.errors import JobRejected
from runtime.ports import DeliversEpochs, Sink


class DeliveryBacklog:
    """Undelivered epochs of all sinks with a stage."""

    def __init__(self, sinks: Mapping[OperatorId, Sink]) -> None:
        self._sinks = {uid: sink for uid, sink in sinks.items() if isinstance(sink, DeliversEpochs)}

    @property
    def has_sinks(self) -> bool:
        """Whether the job has a sink with a stage."""
        return bool(self._sinks)

    def is_too_large(self) -> bool:
        """Whether sources must be paused. Does I/O."""
        return any(sink.backlog() > sink.max_backlog for sink in self._sinks.values())

    def undelivered_epochs(self) -> Mapping[OperatorId, int]:
        """Number of undelivered epochs per sink that has any. Does I/O."""
        return {uid: count for uid, sink in self._sinks.items() if (count := sink.backlog())}


def reject_undelivered_epochs(streams: Path, sinks: Mapping[OperatorId, Sink]) -> None:
    """Rejects a job that would drop undelivered epochs. `streams`: folder of the lineage; `sinks`: the job's, by uid.

    No checkpoint names committed epochs, so the mapping of operators does not cover them. After the restore no operator
    would need their folder, and it would be removed.

    Raises:
        JobRejected: epochs are undelivered, and their sink is missing from the job or no longer delivers epochs.
    """
    delivering = {encode_name(uid) for uid, sink in sinks.items() if isinstance(sink, EpochStage | WriteAheadSink)}
    for folder in sorted(streams.iterdir()) if streams.is_dir() else ():
        log = CommitLog(folder)
        for job, sink in log.sinks() if folder.name not in delivering else ():
            if waiting := len(log.backlog(job, sink)):
                detail = (
                    f"{waiting} committed epochs of this sink are not delivered, and the version has no EpochStage or "
                    "WriteAheadSink of this uid: restore a version that has it and drain the run, or give "
                    "`allow_unmapped` to drop them"
                )
                raise JobRejected("undelivered-epochs", decode_name(sink), detail)
