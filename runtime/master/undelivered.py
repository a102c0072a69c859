"""Check for undelivered epochs of an `EpochStage` that the job of this run lacks.

Committed epochs are named by no checkpoint, so the mapping of operators does not cover them. After the restore no
operator would need their folder, and it would be removed.
"""

from collections.abc import Mapping
from pathlib import Path

from runtime.connectors.commit_log import CommitLog
from runtime.connectors.names import decode_name, encode_name
from runtime.connectors.sinks.epoch_stage import EpochStage
from runtime.core.job.ids import OperatorId
from runtime.errors import JobRejected
from runtime.ports import Sink


def reject_undelivered_epochs(streams: Path, sinks: Mapping[OperatorId, Sink]) -> None:
    """Rejects a job that would drop undelivered epochs. `streams`: folder of the lineage; `sinks`: the job's, by uid.

    Raises:
        JobRejected: epochs are undelivered, and their sink is missing from the job or is no `EpochStage` any more.
    """
    delivering = {encode_name(uid) for uid, sink in sinks.items() if isinstance(sink, EpochStage)}
    for folder in sorted(streams.iterdir()) if streams.is_dir() else ():
        log = CommitLog(folder)
        for job, sink in log.sinks() if folder.name not in delivering else ():
            if waiting := len(log.backlog(job, sink)):
                detail = (
                    f"{waiting} committed epochs of this sink are not delivered, and the version has no EpochStage of "
                    "this uid: restore a version that has it and drain the run, or give `allow_unmapped` to drop them"
                )
                raise JobRejected("undelivered-epochs", decode_name(sink), detail)
