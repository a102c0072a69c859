"""What the kind of a checkpoint decides."""

import pytest

from runtime.core.job.messages import CheckpointKind


@pytest.mark.parametrize(
    ("kind", "is_savepoint", "ends_job"),
    [
        (CheckpointKind.CHECKPOINT, False, False),
        (CheckpointKind.SAVEPOINT, True, False),
        (CheckpointKind.STOP, True, True),
        (CheckpointKind.DRAIN, True, True),
    ],
)
def test_kinds(kind: CheckpointKind, is_savepoint: bool, ends_job: bool) -> None:
    """S0-26: a job ends by itself, or by a stop or drain, which are savepoints."""
    assert (kind.is_savepoint, kind.ends_job) == (is_savepoint, ends_job)
