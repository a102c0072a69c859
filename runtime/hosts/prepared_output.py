"""Output that slots have prepared, looked for by the master before a checkpoint is recorded.

A checkpoint promises that its output can be committed, by whoever restores it. The promise is the master's, so it must
see the files itself: what a slot wrote behind a mount that went away fails the checkpoint. Each committable is looked
for once; after it was recorded it may be committed, and be moved by its readers, at any time.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from runtime.core.checkpoint import Manifest
from runtime.core.commit import owed
from runtime.core.ids import OperatorId
from runtime.core.recovery import Restored
from runtime.ports import Sink


class PreparedOutput:
    """Of one attempt. Used by the thread that records its checkpoints."""

    def __init__(self, sinks: Mapping[OperatorId, Sink], restored: Iterable[Restored]) -> None:
        self._sinks = sinks
        #: Committables of the newest recorded checkpoint.
        self._recorded = {
            _key(each.subtask.operator, committable)
            for each in restored
            for snapshot in each.snapshots
            for committable in snapshot.committables
        }

    def missing(self, manifest: Manifest) -> list[str]:
        """Files of `manifest` that are nowhere to be seen."""
        found: list[str] = []
        for uid, committables in owed(manifest).items():
            fresh = [one for one in committables if _key(uid, one) not in self._recorded]
            found += self._sinks[uid].committer().missing(fresh) if fresh else []
        return found

    def on_recorded(self, manifest: Manifest) -> None:
        self._recorded = {_key(uid, one) for uid, committables in owed(manifest).items() for one in committables}


def _key(uid: OperatorId, committable: Any) -> bytes:
    return msgspec.json.encode((uid, committable), order="deterministic")
