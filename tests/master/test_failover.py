"""What is recorded with a failed attempt, so that pages can name the attempt that follows."""

from runtime.core.job.restart_strategy import ExponentialDelay, FixedDelay
from runtime.master.failover import Failover, GiveUp, Restart
from runtime.master.result import AttemptFailed


def test_failures_that_the_strategy_counts_are_recorded_with_the_attempt() -> None:
    failover = Failover(FixedDelay(attempts=2), ExponentialDelay())
    lost = AttemptFailed("slot 1 was lost")
    decided = [failover.decide(lost, 0) for _ in range(3)]
    assert [type(each) for each in decided] == [Restart, Restart, GiveUp]
    assert [each.failure["failures"] for each in decided] == [1, 2, 3]
