"""Check that prepared output exists, made by the master before it records a checkpoint.

A checkpoint guarantees that any later restore can commit its output. The guarantee is the master's, so it must see the
files itself: output that a slot wrote behind a lost mount fails the checkpoint. Each committable is checked once. After
it was recorded it may be committed, and moved by its readers, at any time.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from runtime.core.job.ids import OperatorId
from runtime.core.restore.state_assignment import SubtaskRestore
from runtime.core.snapshot.commit import pending_committables
from runtime.core.snapshot.manifest import Manifest
from runtime.ports import Sink


class PreparedOutput:
    """Committables of a single attempt; used by the metadata thread."""

    def __init__(self, sinks: Mapping[OperatorId, Sink], restored: Iterable[SubtaskRestore]) -> None:
        self._sinks = sinks
        #: Committables of the newest recorded checkpoint.
        self._recorded_committables = {
            _key(each.subtask.operator, committable)
            for each in restored
            for snapshot in each.snapshots
            for committable in snapshot.committables
        }

    def missing_files(self, manifest: Manifest) -> list[str]:
        """Files of `manifest` that the master does not see."""
        found: list[str] = []
        for uid, committables in pending_committables(manifest).items():
            fresh = [each for each in committables if _key(uid, each) not in self._recorded_committables]
            found += self._sinks[uid].committer().missing(fresh) if fresh else []
        return found

    def on_recorded(self, manifest: Manifest) -> None:
        self._recorded_committables = {
            _key(uid, each) for uid, committables in pending_committables(manifest).items() for each in committables
        }


def _key(uid: OperatorId, committable: Any) -> bytes:
    return msgspec.json.encode((uid, committable), order="deterministic")
