"""Restart strategies: whether there is another attempt, and when."""

import pytest

from runtime.core.job.restart_strategy import (
    AttemptFailure,
    ExponentialDelay,
    FixedDelay,
    NoRestart,
    RepeatedErrors,
    RestartDecision,
    RestartStrategy,
)

EXPONENTIAL = ExponentialDelay(initial_ms=100, max_ms=1_000, multiplier=2.0, reset_after_ms=5_000, jitter=0.0)


def failure(ran_ms: int = 0, progressed: bool = False, draw: float = 0.5) -> AttemptFailure:
    return AttemptFailure(ran_ms=ran_ms, progressed=progressed, draw=draw)


def delays(strategy: RestartStrategy, *failures: AttemptFailure) -> list[int | None]:
    """What a master waits that keeps count, failure by failure."""
    delays, count = [], 0
    for each in failures:
        verdict = strategy.decide(each, count)
        count = verdict.failures
        delays.append(verdict.delay_ms)
    return delays


def test_none_gives_up_at_once() -> None:
    assert NoRestart().decide(failure(), 0) == RestartDecision(1, None)


@pytest.mark.parametrize(
    ("attempts", "failures", "expected"),
    [(3, 1, [50]), (3, 4, [50, 50, 50, None]), (0, 1, [None])],
)
def test_fixed_delay_allows_so_many_attempts(attempts: int, failures: int, expected: list[int | None]) -> None:
    assert delays(FixedDelay(attempts=attempts, delay_ms=50), *[failure()] * failures) == expected


def test_fixed_delay_counts_from_the_last_completed_checkpoint() -> None:
    strategy = FixedDelay(attempts=1, delay_ms=50)
    assert delays(strategy, failure(), failure(progressed=True), failure(ran_ms=9_999)) == [50, 50, None]


def test_exponential_delay_grows_up_to_its_maximum_and_never_gives_up() -> None:
    assert delays(EXPONENTIAL, *[failure()] * 6) == [100, 200, 400, 800, 1_000, 1_000]
    assert EXPONENTIAL.decide(failure(), 100_000) == RestartDecision(100_001, 1_000), "a number too large is no error"


def test_exponential_delay_is_reset_by_a_checkpoint_and_by_running_for_long_enough() -> None:
    ran = [failure(), failure(ran_ms=4_999), failure(ran_ms=5_000), failure(), failure(progressed=True), failure()]
    assert delays(EXPONENTIAL, *ran) == [100, 200, 100, 200, 100, 200]


@pytest.mark.parametrize(
    ("before", "draw", "expected"),
    [(1, 0.0, 160), (1, 0.5, 200), (1, 0.75, 220), (0, 0.0, 100), (0, 0.75, 110), (9, 0.75, 1_000), (9, 0.0, 800)],
)
def test_jitter_spreads_the_delay_within_its_bounds(before: int, draw: float, expected: int) -> None:
    strategy = ExponentialDelay(initial_ms=100, max_ms=1_000, multiplier=2.0, reset_after_ms=5_000, jitter=0.2)
    assert strategy.decide(failure(draw=draw), before).delay_ms == expected


def test_a_constant_delay_is_a_multiplier_of_one() -> None:
    strategy = ExponentialDelay(initial_ms=100, max_ms=1_000, multiplier=1.0, reset_after_ms=5_000, jitter=0.0)
    assert strategy.decide(failure(), 1_000_000).delay_ms == 100


def test_a_programming_error_is_final_when_it_comes_again_at_the_same_record() -> None:
    errors = RepeatedErrors()
    assert [errors.is_final(error, False) for error in ("a", "a")] == [False, True]
    assert not errors.is_final("a", progressed=True), "a checkpoint was completed: it is another record"
    assert errors.is_final("a", progressed=False)


def test_two_records_that_fail_in_turn_are_final_too() -> None:
    """Two subtasks, each with a record that fails: restarts without a limit would never end."""
    errors = RepeatedErrors()
    assert [errors.is_final(error, False) for error in ("a", "b", "", "a")] == [False, False, False, True]


def test_other_failures_never_are() -> None:
    errors = RepeatedErrors()
    assert not any(errors.is_final("", False) for _ in range(3))
