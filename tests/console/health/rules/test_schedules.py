"""The rules on schedules and on restore drills."""

from console.health.facts import FailedDrill, MissedTime
from console.health.findings import Level
from runtime.core.job.lifecycle import RunState
from tests.console.health.facts_of import ago, found, verdict


def test_a_missed_time_is_named_with_its_reason_while_the_run_is_active() -> None:
    miss = MissedTime("restore drill", ago(3_600), "The user may not operate jobs.")
    finding = found("schedule-missed", missed=(miss,))
    assert finding is not None
    assert (finding.level, finding.since) == (Level.ATTENTION, ago(3_600))
    assert finding.sentence == ("The restore drill of 2026-11-23 11:00 UTC was missed: The user may not operate jobs.")
    assert found("schedule-missed", missed=(miss,), state=RunState.STOPPED) is None
    result = verdict(missed=(miss, MissedTime("savepoint", ago(60), "The run is restarting.")))
    assert len(result.findings) == 2


def test_a_failed_drill_is_named_until_a_later_one_succeeds_or_for_eight_days() -> None:
    drill = FailedDrill(ago(3_600), "The clone gave up: file a.arrow is missing.", 12)
    finding = found("drill-failed", failed_drill=drill)
    assert finding is not None
    assert (finding.level, finding.since) == (Level.ATTENTION, ago(3_600))
    assert finding.sentence == (
        "The newest restore drill of snapshot 12 failed 1 h ago: The clone gave up: file a.arrow is missing."
    )
    assert found("drill-failed", failed_drill=drill, state=RunState.STOPPED) is None
    assert found("drill-failed", failed_drill=FailedDrill(ago(8 * 86_400 + 1), "")) is None
    assert found("drill-failed") is None
