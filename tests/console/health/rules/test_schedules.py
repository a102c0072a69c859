"""The rule on schedules."""

from console.health.facts import MissedTime
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
    both = verdict(missed=(miss, MissedTime("savepoint", ago(60), "The run is restarting.")))
    assert len(both.findings) == 2
