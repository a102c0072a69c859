"""Which checkpoints retention discards, and which of their files it deletes."""

from hypothesis import given
from hypothesis import strategies as st

from runtime.core.checkpoint.retention_plan import MAX_KEPT_BY_AGE, KeepReason, RetainedCheckpoint, plan_retention
from runtime.core.job.settings import RetentionPolicy

HOUR_MS = 3_600_000
CHECKPOINTS = st.lists(
    st.builds(
        RetainedCheckpoint,
        number=st.integers(1, 40),
        run=st.integers(1, 2),
        triggered_ms=st.integers(0, 10 * HOUR_MS),
        is_savepoint=st.booleans(),
        is_pinned=st.booleans(),
        is_in_review=st.booleans(),
    ),
    unique_by=lambda each: each.number,
)


def plain(*numbers: int, run: int = 1) -> list[RetainedCheckpoint]:
    return [RetainedCheckpoint(number=number, run=run) for number in numbers]


def test_the_newest_stay_and_the_rest_goes() -> None:
    plan = plan_retention(plain(4, 2, 9, 7), RetentionPolicy(2), run=1, restored=None)
    assert plan.discarded == (2, 4)
    assert plan.kept == {9: (KeepReason.NEWEST,), 7: (KeepReason.NEWEST,)}


def test_the_origin_of_a_run_stays_until_the_run_has_a_checkpoint_and_a_savepoint_is_none() -> None:
    savepoint = RetainedCheckpoint(number=8, run=2, is_savepoint=True)
    plan = plan_retention([*plain(1, 2, 3), savepoint], RetentionPolicy(1), run=2, restored=1)
    assert plan.discarded == (2,)
    assert plan.kept[1] == (KeepReason.RESTORED,)
    with_own = [*plain(1, 2, 3), savepoint, *plain(9, run=2)]
    assert plan_retention(with_own, RetentionPolicy(1), run=2, restored=1).discarded == (1, 2, 3)


def hourly(*numbers: int) -> list[RetainedCheckpoint]:
    """A checkpoint an hour: its number is the hour of its trigger."""
    return [RetainedCheckpoint(number=number, run=1, triggered_ms=number * HOUR_MS) for number in numbers]


def test_checkpoints_of_the_last_hours_stay_beside_the_newest() -> None:
    plan = plan_retention(hourly(1, 2, 3, 8, 9), RetentionPolicy(1, hours=7), run=1, restored=None)
    assert plan.discarded == (1, 2)
    assert plan.kept == {9: (KeepReason.NEWEST, KeepReason.YOUNG), 8: (KeepReason.YOUNG,), 3: (KeepReason.YOUNG,)}
    old = plan_retention(hourly(1, 2, 9), RetentionPolicy(2, hours=1), run=1, restored=None)
    assert old.kept[2] == (KeepReason.NEWEST,), "the number keeps it whatever its age"


def test_a_savepoint_does_not_make_checkpoints_older() -> None:
    savepoint = RetainedCheckpoint(number=99, run=1, triggered_ms=99 * HOUR_MS, is_savepoint=True)
    assert not plan_retention([*hourly(1, 2), savepoint], RetentionPolicy(1, hours=2), run=1, restored=None).discarded


def test_age_keeps_no_more_than_its_limit() -> None:
    """Each deletion reads the manifests of all retained checkpoints."""
    retained = plain(*range(1, MAX_KEPT_BY_AGE + 4))
    assert plan_retention(retained, RetentionPolicy(1, hours=1), run=1, restored=None).discarded == (1, 2, 3)


@given(CHECKPOINTS, st.integers(0, 10), st.integers(1, 12) | st.none(), st.integers(1, 40) | st.none())
def test_every_checkpoint_is_either_kept_with_its_reasons_or_discarded(
    retained: list[RetainedCheckpoint], keep: int, hours: int | None, restored: int | None
) -> None:
    """The oracle counts the newer checkpoints of each checkpoint."""
    plan = plan_retention(retained, RetentionPolicy(keep, hours), run=1, restored=restored)
    assert sorted([*plan.discarded, *plan.kept]) == sorted(each.number for each in retained)
    periodic = [each for each in retained if not (each.is_savepoint or each.is_pinned or each.is_in_review)]
    newest_ms = max((each.triggered_ms for each in retained if not each.is_savepoint), default=0)
    needs_origin = not any(each.run == 1 and not each.is_savepoint for each in retained)
    for each in retained:
        newer = sum(other.number > each.number for other in periodic)
        expected = {
            KeepReason.SAVEPOINT: each.is_savepoint,
            KeepReason.PINNED: each.is_pinned,
            KeepReason.IN_REVIEW: each.is_in_review,
            KeepReason.NEWEST: each in periodic and newer < keep,
            KeepReason.YOUNG: each in periodic and newest_ms - each.triggered_ms < (hours or 0) * HOUR_MS,
            KeepReason.RESTORED: each.number == restored and needs_origin,
        }
        assert set(plan.kept.get(each.number, ())) == {reason for reason, holds in expected.items() if holds}
