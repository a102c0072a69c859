"""Slow, failing and overdue checkpoints, and slow storage: each rule at its border, with the phase to blame."""

from dataclasses import replace

import pytest

from console.health.facts import CheckpointFacts, FailedSavepoint
from console.health.findings import Level
from console.health.rules.checkpoints import blame
from console.metrics.live import OperatorLive
from runtime.core.job.lifecycle import RunState
from runtime.task.task import FAILED_MERGES_COUNTER
from tests.console.health.facts_of import ago, checkpoint, facts, found, operators, phases, sentence, subtask


def taken(duration_ms: float, *statistics: dict[str, object], interval_ms: int = 1_000) -> CheckpointFacts:
    newest = checkpoint(duration_ms=duration_ms, operators=statistics)
    return CheckpointFacts(interval_ms=interval_ms, newest=newest, recent_ms=(duration_ms,))


LATE = (phases("orders", start_delay=5), phases("join", start_delay=19_500), phases("sink", start_delay=19_900))


def test_slow_checkpoints_name_the_phase_the_operator_and_those_that_wait_for_it() -> None:
    """The example of the issue: a barrier waits in the queue before the slow operator, so all behind it are late."""
    busy = {"join": {"subtasks": (subtask(busy=1.0),)}}
    waiting = {uid: {"subtasks": (subtask(backpressured=0.9),)} for uid in ("orders", "payments")}
    assert sentence("checkpoints-slow", checkpoints=taken(20_000, *LATE), operators=operators(**busy, **waiting)) == (
        "Checkpoints take 20 s, 20 times the interval: start delay before `join`, which is 100 % busy; "
        "2 operators wait for it."
    )


def test_slow_checkpoints_are_no_reason_to_take_fewer_if_a_bottleneck_is_known() -> None:
    """A start delay does not depend on the interval, and a longer one makes a recovery go back further."""
    busy = {"join": {"subtasks": (subtask(busy=1.0),)}, "orders": {"subtasks": (subtask(backpressured=0.9),)}}
    checkpoints = replace(taken(38_000, *LATE, interval_ms=5_000), timeout_ms=60_000)
    with_root = found("checkpoints-slow", checkpoints=checkpoints, operators=operators(**busy))
    assert with_root is not None
    assert with_root.remedy == "Relieve `join`."
    assert with_root.sentence.startswith("Checkpoints take 38 s, 8 times the interval and 63 % of the time-out: ")
    without = found("checkpoints-slow", checkpoints=checkpoints)
    assert without is not None
    assert "less often" in without.remedy


def test_a_phase_that_is_longer_than_the_median_has_the_duration_of_its_checkpoint_beside_it() -> None:
    """ "Checkpoints take 12 s: start delay took 20 s": a part was longer than the whole."""
    growing = replace(taken(20_000, *LATE), recent_ms=(20_000, 15_000, 12_000, 9_000, 7_000))
    assert sentence("checkpoints-slow", checkpoints=growing) == (
        "Checkpoints take 12 s, 12 times the interval, and the newest took 20 s: start delay before `join` took 20 s."
    )


@pytest.mark.parametrize(
    ("statistics", "says"),
    [
        (LATE, "start delay before `join` took 20 s"),
        ((phases("orders"), phases("join", alignment=12_000)), "alignment at `join` took 12 s"),
        ((phases("join", sync=11_000), phases("sink", sync=3)), "state copy in `join` took 11 s"),
        ((phases("join", written_bytes=3 << 20, async_=15_000),), "state upload of `join` took 15 s for 3.0 MiB"),
        ((phases("join", sync=4),), "20 s passed after the last acknowledgement, for metadata and the commit"),
    ],
)
def test_each_phase_is_blamed_with_its_operator(statistics: tuple[dict[str, object], ...], says: str) -> None:
    assert says in sentence("checkpoints-slow", checkpoints=taken(20_000, *statistics))


@pytest.mark.parametrize(
    ("duration_ms", "interval_ms", "lit", "is_found"),
    [(5_000, 1_000, False, True), (4_999, 1_000, False, False), (6_000, 2_000, False, True),
     (5_999, 2_000, False, False), (4_000, 2_000, True, True), (3_999, 2_000, True, False)],
)  # fmt: skip
def test_checkpoints_are_slow_from_three_intervals_and_five_seconds_on(
    duration_ms: float, interval_ms: int, lit: bool, is_found: bool
) -> None:
    rules = frozenset({"checkpoints-slow"} if lit else ())
    checkpoints = taken(duration_ms, interval_ms=interval_ms)
    assert (found("checkpoints-slow", checkpoints=checkpoints, lit=rules) is not None) is is_found


def test_checkpoints_that_near_their_time_out_are_slow_however_long_the_interval() -> None:
    def near(duration_ms: float, lit: frozenset[str] = frozenset()) -> str | None:
        checkpoints = replace(taken(duration_ms, *LATE, interval_ms=600_000), timeout_ms=60_000)
        finding = found("checkpoints-slow", checkpoints=checkpoints, lit=lit)
        return None if finding is None else finding.sentence

    assert (near(35_000) or "").startswith("Checkpoints take 35 s, and the time-out is 1 min: start delay before")
    assert near(29_900) is None
    assert near(29_900, frozenset({"checkpoints-slow"})) is not None


@pytest.mark.parametrize(("earlier_ms", "is_found"), [(4_000.0, True), (4_001.0, False), (None, False)])
def test_checkpoints_that_have_grown_to_five_times_those_of_an_hour_ago_are_slow(
    earlier_ms: float | None, is_found: bool
) -> None:
    checkpoints = replace(taken(20_000, *LATE, interval_ms=600_000), timeout_ms=600_000, earlier_ms=earlier_ms)
    finding = found("checkpoints-slow", checkpoints=checkpoints)
    assert (finding is not None) is is_found
    if finding is not None:
        assert finding.sentence.startswith("Checkpoints take 20 s, 5 times as long as an hour ago: start delay")


def test_a_checkpoint_in_progress_is_slow_before_any_has_completed() -> None:
    checkpoints = CheckpointFacts(interval_ms=1_000, begun_at=ago(30), acknowledged=2, subtasks=8)
    assert sentence("checkpoints-slow", checkpoints=checkpoints) == (
        "A checkpoint has taken 30 s, 30 times the interval: 2 of 8 subtasks have acknowledged."
    )


def test_the_commit_phase_is_what_no_subtask_accounts_for() -> None:
    blamed = blame(checkpoint(duration_ms=9_000, operators=(phases("a", sync=1_000), phases("b", async_=2_000))))
    assert (blamed.phase, blamed.took_ms) == ("commit", 7_000)


@pytest.mark.parametrize(("seconds", "completed", "is_found"), [
    (15.1, True, True), (15.0, True, False), (60.1, False, True), (59.0, False, False)])  # fmt: skip
def test_a_checkpoint_is_overdue_after_three_intervals_and_the_first_after_a_minute(
    seconds: float, completed: bool, is_found: bool
) -> None:
    newest = checkpoint(completed_at=ago(seconds)) if completed else None
    changes = {"checkpoints": CheckpointFacts(interval_ms=5_000, newest=newest), "started_at": ago(seconds)}
    assert (found("checkpoints-overdue", **changes) is not None) is is_found


@pytest.mark.parametrize(("lasting_s", "is_found"), [(38.0, False), (41.0, True)])
def test_a_checkpoint_in_progress_is_overdue_once_slower_than_the_newest(lasting_s: float, is_found: bool) -> None:
    """Slow checkpoints have a finding of their own."""
    newest = checkpoint(completed_at=ago(lasting_s + 1), duration_ms=40_000)
    checkpoints = CheckpointFacts(
        interval_ms=5_000, newest=newest, begun_pk=8, begun_at=ago(lasting_s), acknowledged=4, subtasks=10
    )
    late = found("checkpoints-overdue", checkpoints=checkpoints)
    assert (late is not None) is is_found
    if late is not None:
        assert "One has been in progress for 41 s: 4 of 10 subtasks have acknowledged." in late.sentence
        assert (late.checkpoint, late.remedy) == (8, "See which subtasks it waits for.")


def test_failing_checkpoints_name_number_and_reason_and_fail_the_job_from_three_on() -> None:
    def failing(number: int, detail: str = "") -> CheckpointFacts:
        return CheckpointFacts(
            interval_ms=5_000,
            newest=checkpoint(completed_at=ago(200)),
            failed=number,
            failed_pk=9,
            failed_number=10,
            failed_reason="finalize_failed",
            failed_detail=detail,
        )

    twice, often = (found("checkpoints-fail", checkpoints=failing(number)) for number in (2, 3))
    assert twice is not None
    assert often is not None
    assert (twice.level, often.level) == (Level.ATTENTION, Level.FAILED)
    assert often.checkpoint == 9
    assert often.sentence == (
        "No checkpoint has completed for 3 min 20 s; one is due every 5.0 s. "
        "3 failed since then, checkpoint 10 with finalize failed."
    )
    full = found("checkpoints-fail", checkpoints=failing(1, "/s: No space left on device."))
    assert full is not None
    assert full.level is Level.FAILED
    assert full.sentence.startswith("Storage is full. ")


@pytest.mark.parametrize(("number", "is_found"), [(1, False), (2, True)])
def test_two_failures_in_a_row_are_found_before_the_next_checkpoint_is_overdue(number: int, is_found: bool) -> None:
    checkpoints = CheckpointFacts(
        interval_ms=600_000, newest=checkpoint(completed_at=ago(1_300)), failed=number, failed_number=9,
        failed_reason="expired",
    )  # fmt: skip
    finding = found("checkpoints-fail", checkpoints=checkpoints)
    assert (finding is not None) is is_found
    if finding is not None:
        assert finding.sentence == (
            "No checkpoint has completed for 21 min 40 s; one is due every 10 min. "
            "2 failed since then, checkpoint 9 with expired."
        )


@pytest.mark.parametrize(("seconds", "is_found"), [(86_400, True), (86_401, False)])
def test_a_failed_savepoint_is_found_for_a_day(seconds: float, is_found: bool) -> None:
    failed = FailedSavepoint(5, 12, ago(seconds), "finalize_failed", "No space left on device.")
    finding = found("savepoint-failed", failed_savepoint=failed)
    assert (finding is not None) is is_found
    if finding is not None:
        assert finding.sentence == (
            "Savepoint 12 failed 1 d ago with finalize failed: No space left on device. "
            "No later savepoint has completed."
        )
        assert finding.checkpoint == 5


def test_a_savepoint_that_expired_says_so_in_a_word() -> None:
    said = sentence("savepoint-failed", failed_savepoint=FailedSavepoint(5, 12, ago(7), "expired"))
    assert said == "Savepoint 12 expired 7 s ago. No later savepoint has completed."


@pytest.mark.parametrize(("took_ms", "written_mib", "is_found"), [(2_000, 0, True), (1_990, 0, False),
                                                                  (4_000, 12, False), (6_000, 12, True)])  # fmt: skip
def test_storage_is_slow_for_its_bytes(took_ms: float, written_mib: int, is_found: bool) -> None:
    """Two seconds more than 4 MiB/s would need: a large state alone is not slow storage."""
    newest = taken(took_ms + 10, phases("join", written_bytes=written_mib << 20, async_=took_ms), interval_ms=60_000)
    assert (found("storage-slow", checkpoints=newest) is not None) is is_found


def test_storage_is_slow_if_little_happens_after_the_last_acknowledgement() -> None:
    said = sentence("storage-slow", checkpoints=taken(3_400, phases("join", sync=100), interval_ms=60_000))
    assert "checkpoint 7 took 3.3 s after the last acknowledgement" in said


def test_an_acknowledgement_that_waits_for_a_busy_job_master_is_no_slow_storage() -> None:
    checkpoints = taken(9_000, phases("join", sync=100), interval_ms=60_000)
    assert checkpoints.newest is not None
    late = replace(checkpoints, newest=replace(checkpoints.newest, acknowledged_ms=8_900.0))
    assert found("storage-slow", checkpoints=late) is None
    early = replace(checkpoints, newest=replace(checkpoints.newest, acknowledged_ms=4_000.0))
    assert "checkpoint 7 took 5.0 s after the last acknowledgement" in sentence("storage-slow", checkpoints=early)


def test_unreadable_manifests_are_named() -> None:
    live = facts().live
    report = type(live)(at=live.at, unreadable=("savepoint-5-40",))
    assert "The manifest of savepoint-5-40 cannot be read" in sentence("unreadable", live=report)
    assert found("unreadable", live=report, state=RunState.STOPPED) is None, "the last report of a run never changes"


def test_failed_merges_of_state_files_are_named_by_operator() -> None:
    live = facts().live
    report = type(live)(at=live.at, operators={"join": OperatorLive(counters={FAILED_MERGES_COUNTER: 2})})
    assert "Merges of state files of" in sentence("state-unmerged", live=report)
    assert found("state-unmerged", live=type(live)(at=live.at, operators={"join": OperatorLive()})) is None
