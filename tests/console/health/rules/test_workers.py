"""Workers, slots, the job master and standing stages: each rule at its border."""

import pytest

from console.checkpoints.file_systems import FileSystem
from console.health.facts import CheckpointFacts, StageFacts
from console.health.findings import Level
from console.metrics.live import EndingLive, Live, SlotLive, WaitingLive
from runtime.core.job.lifecycle import RunState
from tests.console.health.facts_of import ago, checkpoint, found, sentence, verdict


@pytest.mark.parametrize(("seconds", "is_found"), [(10, True), (9.9, False)])
def test_a_run_waits_ten_seconds_for_a_worker(seconds: float, is_found: bool) -> None:
    assert (found("no-worker", state=RunState.QUEUED, queued_at=ago(seconds)) is not None) is is_found


@pytest.mark.parametrize(("seconds", "level"), [(10, Level.FAILED), (9.9, Level.ATTENTION)])
def test_a_lost_lease_fails_the_job_unless_a_worker_claims_it_within_two_leases(seconds: float, level: Level) -> None:
    """A fail-over by the rules takes that long: a lease until the loss is certain, then the claim."""
    for state in (RunState.RUNNING, RunState.QUEUED):
        finding = found("lost-lease", state=state, lease_lost_at=ago(seconds))
        assert finding is not None
        assert finding.level is level


def test_a_lost_lease_names_the_checkpoint_from_which_the_next_worker_continues() -> None:
    assert found("lost-lease") is None
    for state in (RunState.RUNNING, RunState.QUEUED):
        finding = found("lost-lease", state=state, lease_lost_at=ago(30))
        assert finding is not None
        assert (finding.level, finding.since) == (Level.FAILED, ago(30))
        assert finding.sentence == (
            "The lease of the run's worker was lost at 2026-11-23 11:59:30 UTC: no worker supervises the run. The next "
            "worker of the queue runs continues from checkpoint 7."
        )


def test_a_run_without_a_worker_names_the_queue_or_the_jobs_that_hold_the_workers() -> None:
    waiting = {"state": RunState.QUEUED, "queued_at": ago(40)}
    assert sentence("no-worker", **waiting) == (
        "The run has waited 40 s for a worker: no Celery worker of the queue runs has claimed it."
    )
    busy = "The run has waited 40 s for a worker: the workers of the queue runs are busy with a"
    assert sentence("no-worker", **waiting, places=1, held_places=("a",)) == f"{busy}."
    assert sentence("no-worker", **waiting, places=5, held_places=("a", "b", "c")) == (
        f"{busy}, b, c and 2 more; WEIR_RUNS sets the limit."
    )
    five = sentence("no-worker", **waiting, places=5, held_places=("a", "b", "c", "d"))
    assert five.startswith(f"{busy}, b, c and 2 more")
    assert sentence("no-worker", **waiting, places=4, held_places=("a", "b", "c", "d")) == (
        f"{busy}, b, c, d; WEIR_RUNS sets the limit."
    )


def test_a_disk_that_is_nearly_full_is_named_with_what_is_left() -> None:
    assert found("low-disk") is None
    disk = FileSystem("Checkpoints", "/data/storage", free_bytes=3 << 20, total_bytes=40 << 30)
    assert sentence("low-disk", low_disks=(disk,)) == (
        "A disk of Weir is nearly full: 3.0 MiB free of 40 GiB (Checkpoints). WEIR_MIN_FREE_MB is the limit."
    )


def test_missing_slots_are_counted() -> None:
    live = Live(at=ago(1), waiting=WaitingLive(wanted=2, there=1, held_by="run 3 holds 2"))
    said = sentence("no-slots", state=RunState.WAITING, live=live)
    assert said.startswith("Waiting for slots: 1 of 2 are available; run 3 holds 2.")


def test_a_spark_master_that_is_away_is_no_lack_of_executors() -> None:
    live = Live(at=ago(1), waiting=WaitingLive(2, 0, "the Spark master spark://h:7077 does not answer"))
    finding = found("no-slots", state=RunState.WAITING, live=live)
    assert finding is not None
    assert "0 of 2 are available; the Spark master spark://h:7077 does not answer." in finding.sentence
    assert finding.remedy == "Start the Spark master or Spark Connect server, or check its host."


def test_enough_slots_are_not_called_missing() -> None:
    """The page of a job said *4 of 2 are available*, and advised to add executors."""
    live = Live(at=ago(1), waiting=WaitingLive(wanted=2, there=4))
    finding = found("no-slots", state=RunState.WAITING, live=live)
    assert finding is not None
    assert finding.sentence == "Enough slots are free: 4 for the 2 of the run. Their processes have not started yet."
    assert "executors" not in finding.remedy


@pytest.mark.parametrize(("max_restarts", "is_limited"), [(10, True), (None, False)])
def test_a_wait_says_what_it_does_not_count_towards(max_restarts: int | None, is_limited: bool) -> None:
    """*does not count as a restart* stood beside the number of restarts, which rose: the head counts all of them."""
    live = Live(at=ago(1), waiting=WaitingLive(wanted=2, there=1))
    said = sentence("no-slots", state=RunState.WAITING, live=live, max_restarts=max_restarts)
    assert "count as a restart" not in said
    assert ("The wait does not count towards its limit of restarts." in said) is is_limited
    assert said.endswith("You can cancel the run.")


@pytest.mark.parametrize(("silence_ms", "is_found"), [(4_000, True), (3_999, False)])
def test_a_slot_is_silent_after_four_seconds(silence_ms: float, is_found: bool) -> None:
    live = Live(at=ago(1), slots=(SlotLive(index=1, host="h2", pid=9, seen_ms_ago=silence_ms),))
    finding = found("silent-slot", live=live)
    assert (finding is not None) is is_found
    assert finding is None or finding.sentence.startswith("Slot 1 on h2, process 9 has sent nothing for 4.0 s.")


@pytest.mark.parametrize(("seconds", "is_found"), [(10, True), (9.9, False)])
def test_a_job_master_is_silent_after_ten_seconds(seconds: float, is_found: bool) -> None:
    assert (found("silent-master", live=Live(at=ago(seconds))) is not None) is is_found


def test_a_job_master_that_died_before_its_first_report_is_silent_too() -> None:
    finding = found("silent-master", live=Live(), started_at=ago(10))
    assert finding is not None
    assert finding.since == ago(10)


@pytest.mark.parametrize(("seconds", "is_found"), [(20, True), (19.9, False)])
def test_samples_are_old_after_twenty_seconds(seconds: float, is_found: bool) -> None:
    finding = found("old-numbers", sampled_at=ago(seconds))
    assert (finding is not None) is is_found
    assert finding is None or finding.sentence == (
        "The numbers of the subtasks are 20 s old, of 2026-11-23 11:59:40 UTC: the job master reports, but stores no "
        "history."
    )


def test_a_silent_job_master_is_named_instead_of_its_old_samples() -> None:
    old = {"live": Live(at=ago(25)), "sampled_at": ago(25)}
    assert found("old-numbers", **old) is None
    assert sentence("silent-master", **old).startswith(
        "The job master has not reported for 25 s, since 2026-11-23 11:59:35 UTC: "
    )


def test_stages_and_the_backlog_of_a_sink_are_named() -> None:
    stage = StageFacts(operator="sink", is_restarting=True, deaths=3, reason="killed", created_at=ago(90))
    assert "The PySpark stage of `sink` has failed 3 times" in sentence("standing-stage", stages=(stage,))
    live = Live(at=ago(1), sources_paused=True)
    assert "Its PySpark stage is not running: `sink`." in sentence("sink-backlog", live=live, stages=(stage,))
    waiting = StageFacts(operator="sink", is_restarting=False, created_at=ago(15))
    assert found("standing-stage", stages=(waiting,)) is None
    assert found("standing-stage", stages=(StageFacts(operator="s", is_restarting=False, created_at=ago(16)),))


ENDING = {"state": RunState.STOPPING, "sampled_at": ago(90)}


def test_a_job_master_that_waits_for_the_last_commit_is_not_silent_and_names_the_error() -> None:
    live = Live(at=ago(1), ending=EndingLive(waited_ms=2_000, error="Postgres: the server is away."))
    assert [finding.rule for finding in verdict(live=live, **ENDING).findings] == ["slow-end"]
    assert sentence("slow-end", live=live, **ENDING) == (
        "All subtasks have ended. The run has waited 2.0 s for the commit of its output: Postgres: the server is away."
    )


@pytest.mark.parametrize(("waited_ms", "is_found"), [(60_000, True), (59_000, False)])
def test_a_delivery_after_the_end_of_all_subtasks_is_slow_after_a_minute(waited_ms: float, is_found: bool) -> None:
    """Its old samples and its checkpoints, of which none begins any more, are no findings."""
    live = Live(at=ago(1), ending=EndingLive(phase="delivery", waited_ms=waited_ms, undelivered={"sink": 3}))
    old = CheckpointFacts(interval_ms=5_000, newest=checkpoint(completed_at=ago(300)))
    health = verdict(live=live, checkpoints=old, state=RunState.RUNNING, sampled_at=ago(90))
    assert [finding.rule for finding in health.findings] == ["slow-end"] * is_found
    assert not is_found or health.sentence == (
        "All subtasks have ended. The run has waited 1 min for the delivery of epochs: 3 of `sink`."
    )


def test_a_job_master_that_dies_during_its_last_wait_is_silent() -> None:
    live = Live(at=ago(30), ending=EndingLive(waited_ms=90_000))
    assert found("slow-end", live=live, **ENDING) is None
    assert found("silent-master", live=live, **ENDING) is not None
