"""Sinks without a second phase."""

import pytest

from runtime.connectors.sinks.no_committer import NoCommitter
from runtime.core.job.ids import CheckpointId, Token
from runtime.core.snapshot.commit import permit_from_master
from runtime.errors import JobRejected


def test_pending_output_of_another_sink_is_refused_and_not_lost() -> None:
    """A savepoint of a staged sink is restored with `commit="immediate"`."""
    permit = permit_from_master("job", Token(1), CheckpointId(1))
    assert NoCommitter().commit(permit, []) == 0
    with pytest.raises(JobRejected, match="restore with the former sink"):
        NoCommitter().commit(permit, [{"table": "t", "rows": 3}])
