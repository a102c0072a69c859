"""The manifest of a clone: a job restored from a snapshot of another job, with its output discarded."""

from collections.abc import Collection

import msgspec

from runtime.core.job.messages import CheckpointKind
from runtime.core.snapshot.manifest import Manifest, OperatorSnapshot, Segment, SubtaskSnapshot
from runtime.core.snapshot.manifest_codec import self_contained_manifest


def clone_manifest(manifest: Manifest, job: str, sinks: Collection[str]) -> tuple[Manifest, dict[str, Segment]]:
    """The snapshot as a savepoint of `job`, and the origins of segments that have a new path, by that path.

    The state of `sinks` is left out: it describes output that the clone must neither commit nor clean. Operators that
    had finished stay finished.
    """
    operators = {
        uid: _without_state(operator) if uid in sinks else operator for uid, operator in manifest.operators.items()
    }
    kind = CheckpointKind.SAVEPOINT
    return self_contained_manifest(
        msgspec.structs.replace(manifest, job=job, kind=kind, variant="", operators=operators)
    )


def _without_state(operator: OperatorSnapshot) -> OperatorSnapshot:
    subtasks = {
        index: SubtaskSnapshot(finished=snapshot.finished, watermark=snapshot.watermark)
        for index, snapshot in operator.subtasks.items()
    }
    return msgspec.structs.replace(operator, subtasks=subtasks)
