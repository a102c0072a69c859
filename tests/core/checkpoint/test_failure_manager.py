"""Failures in a row."""

from runtime.core.checkpoint.failure_manager import CheckpointFailureManager
from runtime.core.job.ids import CheckpointId
from runtime.core.snapshot.failure_reason import FailureReason as Why


def test_any_number_is_borne_when_none_is_set() -> None:
    tolerance = CheckpointFailureManager(None)
    assert [tolerance.on_failed(Why.EXPIRED, "slow") for _ in range(50)] == [None] * 50


def test_one_more_than_tolerable_fails_the_attempt_and_then_counting_starts_again() -> None:
    tolerance = CheckpointFailureManager(1)
    told = "more than 1 checkpoints in a row failed, the last one: expired: slow"
    assert [tolerance.on_failed(Why.EXPIRED, "slow") for _ in range(4)] == [None, told, None, told]


def test_a_completed_checkpoint_starts_the_count_again() -> None:
    tolerance = CheckpointFailureManager(1)
    tolerance.on_failed(Why.ASYNC_FAILED, "disk full")
    tolerance.on_completed(CheckpointId(1))
    assert tolerance.on_failed(Why.ASYNC_FAILED, "disk full") is None


def test_failures_that_are_nobodys_fault_do_not_count() -> None:
    tolerance = CheckpointFailureManager(0)
    assert tolerance.on_failed(Why.SUBSUMED, "") is None
    assert tolerance.on_failed(Why.UNION_STATE_PARTLY_FINISHED, "") is None
