"""The committer of sinks whose rows are visible at once."""

from collections.abc import Sequence
from typing import Any

from runtime.core.snapshot.commit import CommitPermit
from runtime.errors import JobRejected
from runtime.ports import SinkCommitter


class NoCommitter(SinkCommitter):
    """Commits nothing: writers of such a sink prepare no committables."""

    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        """Raises JobRejected for a committable: a restore would lose the output that another sink has prepared."""
        if committables:
            raise foreign_output_error()
        return 0


def foreign_output_error() -> JobRejected:
    """The error for pending output of a checkpoint that a sink of another kind has prepared."""
    detail = "the checkpoint has pending output of another kind of sink: restore with the former sink or its `commit`"
    return JobRejected("bad-committable", "sink", detail)
