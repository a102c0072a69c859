"""Outages, full storage, memory, restart loops and failed runs: each rule at its border."""

import pytest

from console.health.findings import Level
from runtime.core.job.lifecycle import RunState
from tests.console.health.facts_of import NOW, ago, failed_attempt, found, sentence

OUTAGE = {"code": "outage", "operator": "sink", "message": "/out: Connection refused", "tries": 4}


def test_a_restart_loop_names_its_common_cause() -> None:
    attempts = tuple(failed_attempt(seconds, operator="join") for seconds in (4, 20, 40))
    said = sentence("restart-loop", attempts=attempts)
    assert said == "Restart loop: failed 3 times in 40 s, each time in `join`: KeyError: 'x'."
    mixed = (*attempts, failed_attempt(50, operator="orders"))
    assert "failed 4 times in 50 s, 3 of them in `join`" in sentence("restart-loop", attempts=mixed)


@pytest.mark.parametrize(
    ("failures", "max_restarts", "said"),
    [(3, 10, "restart 3 of 10"), (3, None, "restart 3"), (None, 10, "a restart")],
)
def test_a_restart_has_its_number_and_its_limit(failures: int | None, max_restarts: int | None, said: str) -> None:
    attempts = (failed_attempt(4, failures=failures, operator="join"),)
    text = sentence("restarting", state=RunState.RESTARTING, attempts=attempts, max_restarts=max_restarts)
    assert text == f"An attempt failed 4 s ago, and {said} is under way. `join`: KeyError: 'x'."


@pytest.mark.parametrize(("times", "is_found"), [((1, 2, 600), True), ((1, 2, 601), False), ((1, 2), False)])
def test_a_loop_is_three_failures_within_ten_minutes(times: tuple[float, ...], is_found: bool) -> None:
    assert (found("restart-loop", attempts=tuple(map(failed_attempt, times))) is not None) is is_found


@pytest.mark.parametrize(("minutes", "is_found"), [((3, 14, 25, 41, 60), True), ((3, 14, 25, 41), False)])
def test_a_loop_is_five_failures_within_an_hour_however_long_the_job_runs_between_them(
    minutes: tuple[int, ...], is_found: bool
) -> None:
    attempts = tuple(failed_attempt(60 * each) for each in minutes)
    finding = found("restart-loop", attempts=attempts)
    assert (finding is not None) is is_found
    if finding is not None:
        assert finding.sentence == "Restart loop: failed 5 times in 1 h, each time: KeyError: 'x'."
        assert finding.level is Level.ATTENTION


def test_a_loop_without_a_checkpoint_in_between_fails_the_job() -> None:
    """A checkpoint that completed 3 s ago, after the first failure, is progress."""
    progress = found("restart-loop", attempts=tuple(map(failed_attempt, (1, 2, 9))))
    stuck = found("restart-loop", attempts=tuple(map(failed_attempt, (0.5, 1, 2))))
    assert progress is not None
    assert stuck is not None
    assert (progress.level, stuck.level) == (Level.ATTENTION, Level.FAILED)
    assert "No checkpoint has completed in between" in stuck.sentence


def test_an_outage_names_the_operator_and_the_next_attempt() -> None:
    attempts = (failed_attempt(3, next_at=NOW.replace(second=40), **OUTAGE),)
    said = sentence("outage", state=RunState.RESTARTING, attempts=attempts)
    assert said.startswith(
        "Waiting for storage or a service: `sink`. /out: Connection refused. Failed 4 times in a row; "
        "the next attempt is in 40 s."
    )
    assert said.endswith("in 40 s. The run continues by itself.")
    limited = sentence("outage", state=RunState.RESTARTING, attempts=attempts, max_restarts=10)
    assert "Such a failure does not count towards its limit of restarts. The run continues" in limited


@pytest.mark.parametrize(("ended_ago", "tries", "is_found"), [(2, 2, True), (2, 1, False), (4, 2, False)])
def test_a_repeated_outage_lasts_until_a_checkpoint_completes(ended_ago: float, tries: int, is_found: bool) -> None:
    """Between two failures the run is RUNNING for a while. The newest checkpoint completed 3 s ago."""
    attempts = (failed_attempt(ended_ago, **{**OUTAGE, "tries": tries}),)
    assert (found("outage", attempts=attempts) is not None) is is_found


def test_full_storage_fails_the_job_and_has_its_own_remedy() -> None:
    attempts = (failed_attempt(3, **{**OUTAGE, "message": "/out: No space left on device"}),)
    finding = found("outage", state=RunState.RESTARTING, attempts=attempts)
    assert finding is not None
    assert finding.level is Level.FAILED
    assert finding.sentence.startswith("Storage is full: `sink`. /out: No space left on device.")
    assert "Free space" in finding.remedy


def test_a_read_only_file_system_is_not_called_full() -> None:
    """Free space would not help: a disk with errors is mounted read-only by Linux."""
    attempts = (failed_attempt(3, **{**OUTAGE, "message": "/out: Read-only file system"}),)
    finding = found("outage", state=RunState.RESTARTING, attempts=attempts)
    assert finding is not None
    assert finding.level is Level.FAILED
    assert finding.sentence.startswith("The file system is read-only: `sink`. /out: Read-only file system.")
    assert "mount it writable" in finding.remedy


@pytest.mark.parametrize(("ended_ago", "is_found"), [(600, True), (601, False)])
def test_slots_above_their_memory_are_found_for_ten_minutes(ended_ago: float, is_found: bool) -> None:
    attempts = (failed_attempt(ended_ago, code="slot-out-of-memory", message="Slot 1 uses 612 MB.", tries=3),)
    assert (found("memory", attempts=attempts) is not None) is is_found


def test_a_failed_run_gives_its_message_since_its_end() -> None:
    finding = found("run-failed", state=RunState.FAILED, failure="the table is gone", ended_at=ago(60))
    assert finding is not None
    assert (finding.sentence, finding.since, finding.level) == ("the table is gone", ago(60), Level.FAILED)
