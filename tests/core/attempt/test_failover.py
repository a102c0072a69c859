"""What is recorded with a failed attempt, so that pages can name the attempt that follows."""

from runtime.core.attempt.failover import Failover, GiveUp, Restart
from runtime.core.attempt.result import AttemptFailed
from runtime.core.job.restart_strategy import ROWS_NOT_REPEATED_CODE, ExponentialDelay, FixedDelay


def test_failures_that_the_strategy_counts_are_recorded_with_the_attempt() -> None:
    failover = Failover(FixedDelay(attempts=2), ExponentialDelay())
    lost = AttemptFailed("slot 1 was lost")
    decided = [failover.decide(lost, 0, 0.5) for _ in range(3)]
    assert [type(each) for each in decided] == [Restart, Restart, GiveUp]
    assert [each.failure["failures"] for each in decided] == [1, 2, 3]


def test_rows_that_were_not_repeated_count_as_no_failure() -> None:
    """The failure before them counts. A job with a single restart failed by two failures."""
    failover = Failover(FixedDelay(attempts=1, delay_ms=500), ExponentialDelay())
    lost, repeats_not = AttemptFailed("slot 1 was lost"), AttemptFailed("other rows", code=ROWS_NOT_REPEATED_CODE)
    first, second, third = (failover.decide(failed, 0, 0.5) for failed in (lost, repeats_not, lost))
    assert isinstance(first, Restart)
    assert isinstance(second, Restart)
    assert (second.delay_ms, "failures" in second.failure) == (0, False)
    assert isinstance(third, GiveUp)


def test_the_log_of_a_lost_slot_is_recorded_with_the_attempt() -> None:
    """The live report of the next attempt has the logs of its own slots."""
    failover = Failover(FixedDelay(attempts=2), ExponentialDelay())
    decided = failover.decide(AttemptFailed("slot 1 was lost", slot=1, slot_log="/4/stderr on host-1"), 0, 0.5)
    assert (decided.failure["slot"], decided.failure["slot_log"]) == (1, "/4/stderr on host-1")
    assert "slot_log" not in failover.decide(AttemptFailed("slots [1] did not connect"), 0, 0.5).failure
