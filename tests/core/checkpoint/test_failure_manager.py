"""Failures in a row."""

from runtime.core.checkpoint.failure_manager import CheckpointFailureManager
from runtime.core.snapshot.failure_reason import FailureReason as Why


def test_any_number_is_borne_when_none_is_set() -> None:
    tolerance = CheckpointFailureManager(None)
    assert [tolerance.on_failed(Why.EXPIRED, "slow") for _ in range(50)] == [None] * 50


def test_one_more_than_tolerable_fails_the_attempt_and_then_counting_starts_again() -> None:
    tolerance = CheckpointFailureManager(1)
    message = "more than 1 checkpoints in a row failed, the last one: expired: slow"
    assert [tolerance.on_failed(Why.EXPIRED, "slow") for _ in range(4)] == [None, message, None, message]
