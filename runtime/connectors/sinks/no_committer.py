"""The committer of sinks whose rows are visible at once."""

from collections.abc import Sequence
from typing import Any

from runtime.core.snapshot.commit import CommitPermit
from runtime.ports import SinkCommitter


class NoCommitter(SinkCommitter):
    """Commits nothing: writers of such a sink prepare no committables."""

    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        return 0
