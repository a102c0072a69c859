"""When the clock asks."""

from runtime.core.checkpoint.trigger_schedule import RESUMED_TRIGGER_MS, TriggerSchedule


def started(min_pause_ms: int = 0, interval_ms: int | None = 50) -> TriggerSchedule:
    pacing = TriggerSchedule(interval_ms, min_pause_ms)
    pacing.start(100)
    return pacing


def test_the_period_does_not_drift() -> None:
    """S2-07: fixed rate; the first time is one interval after the start."""
    pacing = started()
    assert pacing.next_at == 150
    assert [pacing.due(at) for at in (149, 157, 199, 200)] == [None, 200, None, 250]


def test_a_job_that_was_resumed_is_asked_soon() -> None:
    """Nor later than the period; from then on the period holds. There is nothing yet that a pause could follow."""
    pacing = TriggerSchedule(interval_ms=5_000, min_pause_ms=700)
    assert pacing.start(100, resumed=True) == 100 + RESUMED_TRIGGER_MS
    assert pacing.due(100 + RESUMED_TRIGGER_MS) == 5_100 + RESUMED_TRIGGER_MS
    assert TriggerSchedule(interval_ms=50, min_pause_ms=0).start(100, resumed=True) == 150
    assert TriggerSchedule(interval_ms=None, min_pause_ms=0).start(100, resumed=True) is None


def test_periods_that_were_slept_through_are_lost() -> None:
    pacing = started()
    assert pacing.due(370) == 400, "once, not five times"
    assert pacing.due(371) is None


def test_a_second_start_leaves_one_clock() -> None:
    """S2-05, S2-06."""
    pacing = started()
    assert pacing.start(120) == 170
    assert pacing.due(150) is None


def test_a_clock_that_is_stopped_or_without_interval_never_asks() -> None:
    """S2-08, S2-27."""
    pacing = started()
    pacing.stop()
    assert pacing.due(1_000) is None
    assert started(interval_ms=None).due(1_000) is None


def test_the_pause_is_counted_from_the_last_completion() -> None:
    pacing = started(min_pause_ms=80)
    assert pacing.min_pause_until(150) is None, "none has completed yet"
    pacing.on_completed(160)
    assert pacing.min_pause_until(200) == 150, "what is planned earlier stays"
    pacing.due(200)
    assert pacing.min_pause_until(200) == 240
    assert pacing.min_pause_until(240) is None


def test_the_pause_wakes_even_a_clock_that_is_stopped() -> None:
    """A request that was held back would be lost otherwise."""
    pacing = started(min_pause_ms=80)
    pacing.on_completed(100)
    pacing.stop()
    assert pacing.min_pause_until(100) == 180


def test_one_more_try_in_each_period() -> None:
    """S2-38."""
    pacing = started()
    tries = [pacing.may_retry()]
    pacing.on_retry()
    tries.append(pacing.may_retry())
    pacing.due(150)
    tries.append(pacing.may_retry())
    pacing.stop()
    tries.append(pacing.may_retry())
    assert tries == [True, False, True, False]
