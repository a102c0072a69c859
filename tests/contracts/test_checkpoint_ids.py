"""The counter of checkpoint ids lives in Postgres and outlives whoever asks it."""

import pytest

from runtime.core.checkpoint.effects import ReportCheckpoint
from runtime.core.job.ids import CheckpointId, Token
from runtime.core.job.messages import CheckpointKind
from runtime.io.postgres.store import PostgresRunStore
from tests.contracts.test_records import make_run, url

pytestmark = pytest.mark.django_db(transaction=True)


def test_no_id_is_given_twice_whoever_dies_in_between() -> None:
    """S2-19: the master is lost with an id in hand; its successor gets larger ones, and a zombie none at all."""
    run = make_run()
    token, numbers = Token(run.token), list[int]()
    for _ in range(3):
        records = PostgresRunStore(url(), run.pk, token, 128)
        number = records.next_checkpoint_id()
        assert number is not None
        numbers.append(number)
        newer = records.next_attempt("the master died", {})
        assert newer is not None
        records.close()
        zombie = PostgresRunStore(url(), run.pk, token, 128)
        assert zombie.next_checkpoint_id() is None
        zombie.close()
        token = newer
    assert numbers == sorted(set(numbers))
    run.job.refresh_from_db()
    assert run.job.last_checkpoint_id == numbers[-1]


def test_the_row_of_a_pending_checkpoint_knows_what_it_waits_for() -> None:
    """S2-20: job, id, time of the trigger, and how many have to acknowledge."""
    run = make_run()
    records = PostgresRunStore(url(), run.pk, Token(run.token), 128)
    records.report_checkpoint(ReportCheckpoint(CheckpointId(3), CheckpointKind.SAVEPOINT, 1_000, 1_000, 0, 4))
    records.close()
    row = run.checkpoints.get()
    assert (row.job_id, row.run_id, row.number, row.kind) == (run.job_id, run.pk, 3, "savepoint")
    assert (row.triggered_at.timestamp(), row.acknowledged, row.subtasks, row.status) == (1.0, 0, 4, "in_progress")
