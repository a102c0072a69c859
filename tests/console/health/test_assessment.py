"""The verdict: which finding comes first, and that a job that is well has none."""

from dataclasses import replace
from datetime import timedelta

import pytest

from console.health.assessment import RULES, assess
from console.health.facts import CheckpointFacts, FailedSavepoint, RunFacts
from console.health.findings import Level
from runtime.core.job.lifecycle import TERMINAL_STATES, RunState
from tests.console.health.facts_of import (
    NOW,
    ago,
    checkpoint,
    facts,
    failed_attempt,
    found,
    operators,
    phases,
    subtask,
    verdict,
)


def test_a_job_that_is_well_has_no_finding_and_a_sentence_on_its_checkpoints() -> None:
    well = verdict()
    assert (well.level, well.findings) == (Level.OK, ())
    assert well.sentence == "Checkpoints take 0.31 s and begin every 5.0 s."


@pytest.mark.parametrize("state", sorted(set(RunState) - {RunState.FAILED, RunState.WAITING, RunState.RESTARTING}))
def test_a_run_that_has_just_begun_is_well_in_every_state(state: RunState) -> None:
    young = RunFacts(now=NOW, state=state, created_at=ago(3), started_at=ago(2))
    assert assess(young).findings == ()
    assert assess(young).level is (Level.NONE if state in TERMINAL_STATES else Level.OK)


def test_the_most_severe_finding_gives_the_sentence_and_causes_precede_effects() -> None:
    """A silent master is worse than a slow operator; of equal findings the table's first comes first."""
    slow = operators(join={"subtasks": (subtask(0, busy=1.0), subtask(1, busy=1.0))},
                     orders={"subtasks": (subtask(backpressured=0.9),)})  # fmt: skip
    sick = verdict(operators=slow, live=facts().live.__class__(at=ago(60)), checkpoints=CheckpointFacts(
        interval_ms=1_000, newest=checkpoint(completed_at=ago(40)), begun_at=ago(39), subtasks=6))  # fmt: skip
    assert [finding.rule for finding in sick.findings] == [
        "silent-master", "checkpoints-slow", "backpressure", "checkpoints-overdue",
    ]  # fmt: skip
    assert sick.level is Level.FAILED
    assert sick.sentence == sick.findings[0].sentence


def test_a_finding_lasts_since_the_former_verdict_found_it() -> None:
    sick = facts(operators=operators(orders={"subtasks": (subtask(backpressured=0.9),)}))
    assert assess(sick).since == NOW
    assert assess(sick, {"backpressure": ago(90)}).since == NOW - timedelta(seconds=90)


def test_a_single_failure_is_no_second_finding_beside_its_cause() -> None:
    assert found("restarting", state=RunState.RESTARTING, attempts=(failed_attempt(2),)) is not None
    late = CheckpointFacts(interval_ms=1_000, newest=checkpoint(completed_at=ago(40)))
    lost = verdict(state=RunState.RESTARTING, attempts=(failed_attempt(2),), checkpoints=late)
    assert [finding.rule for finding in lost.findings] == ["restarting"], "an effect hides no cause"
    failing = replace(late, failed=3, failed_number=4, failed_reason="expired")
    failed = verdict(state=RunState.RESTARTING, attempts=(failed_attempt(2),), checkpoints=failing)
    assert {finding.rule for finding in failed.findings} == {"checkpoints-fail", "restarting"}, "neither is the cause"
    loop = verdict(state=RunState.RESTARTING, attempts=tuple(failed_attempt(n) for n in (2, 5, 9)))
    assert [finding.rule for finding in loop.findings] == ["restart-loop"]


def test_a_restart_comes_before_the_slow_checkpoints_of_the_attempt_that_ended() -> None:
    newest = checkpoint(duration_ms=20_000, operators=(phases("join", start_delay=20_000),))
    slow = CheckpointFacts(interval_ms=1_000, newest=newest, recent_ms=(20_000,))
    lost = verdict(state=RunState.RESTARTING, attempts=(failed_attempt(2),), checkpoints=slow)
    assert [finding.rule for finding in lost.findings] == ["restarting", "checkpoints-slow"]


def test_a_failed_savepoint_gives_way_to_what_the_run_does_now() -> None:
    failed = FailedSavepoint(5, 12, ago(60), "expired")
    sick = verdict(state=RunState.RESTARTING, attempts=(failed_attempt(2),), failed_savepoint=failed)
    assert [finding.rule for finding in sick.findings] == ["restarting", "savepoint-failed"]


def test_a_failure_now_goes_back_to_the_trigger_of_the_newest_checkpoint() -> None:
    """Its positions are of that time, however long the checkpoint took."""
    slow = facts(checkpoints=CheckpointFacts(newest=checkpoint(completed_at=ago(5), duration_ms=38_000)))
    assert slow.replays_from == ago(43)
    assert facts(checkpoints=CheckpointFacts(), started_at=ago(90)).replays_from == ago(90)


def test_names_are_unique_and_every_rule_has_a_remedy() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.remedy and rule.states for rule in RULES)
