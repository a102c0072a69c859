"""Rules on the processes of a run: workers, slots, job master, standing stages."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from django.conf import settings

from console import formats
from console.health.facts import RunFacts
from console.health.findings import Finding, Level, names

MAX_QUEUED: Final = timedelta(seconds=10)  #: for a free worker of the queue `runs`
#: For a fail-over: the time of a lease until the loss is certain, and as much for another worker's claim.
MAX_TAKE_OVER: Final = timedelta(seconds=2 * settings.WEIR_LEASE_S)
MAX_STAGE_WAIT: Final = timedelta(seconds=15)  #: for a free worker of the queue `standing`
MAX_SLOT_SILENCE_MS: Final = 4_000.0  #: slots send a heartbeat each second
MAX_MASTER_SILENCE: Final = timedelta(seconds=10)  #: a master reports each second
MAX_END_WAIT_MS: Final = 60_000.0  #: for a commit or a delivery after the end of all subtasks
MAX_NAMED: Final = 3
_MASTER_AWAY: Final = "does not answer"  #: in the cause of a shortage, as launchers word it


def lost_lease(facts: RunFacts) -> Iterator[Finding]:
    at = facts.lease_lost_at
    if at is None:
        return
    newest = facts.checkpoints.newest
    point = f"checkpoint {newest.number}" if newest else "the state with which it began"
    yield Finding(
        sentence=f"The lease of the run's worker was lost at {formats.utc(at)}: no worker supervises the run. The next "
        f"worker of the queue runs continues from {point}.",
        level=Level.ATTENTION if facts.now - at < MAX_TAKE_OVER else Level.FAILED,
        since=at,
    )


def low_disk(facts: RunFacts) -> Iterator[Finding]:
    if facts.low_disks:
        left = ", ".join(disk.free_words for disk in facts.low_disks)
        yield Finding(sentence=f"A disk of Weir is nearly full: {left}. WEIR_MIN_FREE_MB is the limit.")


def no_worker(facts: RunFacts) -> Iterator[Finding]:
    since = facts.queued_at or facts.created_at
    if facts.now - since < MAX_QUEUED:
        return
    if facts.places:
        jobs = facts.held_places if facts.places <= MAX_NAMED + 1 else facts.held_places[:MAX_NAMED]
        suffix = f" and {facts.places - len(jobs)} more" if facts.places > len(jobs) else ""
        limit = "; WEIR_RUNS sets the limit" if facts.places >= settings.WEIR_RUNS else ""
        why = f"the workers of the queue runs are busy with {', '.join(jobs)}{suffix}{limit}"
    else:
        why = "no Celery worker of the queue runs has claimed it"
    waited = facts.age(since)
    yield Finding(sentence=f"The run has waited {waited} for a worker: {why}.", since=since)


def no_slots(facts: RunFacts) -> Iterator[Finding]:
    wait = facts.live.waiting
    if wait is not None and wait.is_over:
        yield Finding(
            sentence=f"Enough slots are free: {wait.there} for the {wait.wanted} of the run. Their processes have not "
            "started yet.",
            remedy="See the log of the job master if this lasts for more than a minute.",
        )
        return
    there = f": {wait.there} of {wait.wanted} are available" if wait else ""
    holders = f"; {wait.held_by}" if wait and wait.held_by else ""
    yield Finding(
        sentence=f"Waiting for slots{there}{holders}. The run starts by itself once enough slots are free. "
        f"{facts.not_counted('The wait')}You can cancel the run.",
        remedy="Start the Spark master or Spark Connect server, or check its host." if _MASTER_AWAY in holders else "",
    )


def silent_since(at: datetime | None, now: datetime) -> datetime | None:
    """The time `at` of the last report of a job master, if the next one is overdue; else None."""
    return at if at is not None and now - at >= MAX_MASTER_SILENCE else None


def silent_master(facts: RunFacts) -> Iterator[Finding]:
    at = silent_since(facts.live.at or facts.started_at, facts.now)
    if at is None:
        return
    silence = facts.age(at)
    yield Finding(
        sentence=f"The job master has not reported for {silence}, since {formats.utc(at)}: its process, its host "
        "or its way to Postgres is gone. The numbers of the run are old.",
        level=Level.FAILED,
        since=at,
    )


def slow_end(facts: RunFacts) -> Iterator[Finding]:
    """A run whose subtasks have ended, but not its commit or its delivery. A short wait is no finding."""
    ending = facts.live.ending
    if ending is None or silent_since(facts.live.at, facts.now):
        return
    if ending.waited_ms < MAX_END_WAIT_MS and not ending.error:
        return
    waited = formats.duration(ending.waited_ms)
    if ending.phase == "delivery":
        late = [f"{count} of {facts.operator(uid)}" for uid, count in ending.undelivered.items()]
        text = f"All subtasks have ended. The run has waited {waited} for the delivery of epochs: {names(late)}."
        yield Finding(sentence=text, operator=next(iter(ending.undelivered), ""))
    else:
        cause = f": {ending.error.rstrip('.')}" if ending.error else ""
        yield Finding(
            sentence=f"All subtasks have ended. The run has waited {waited} for the commit of its output{cause}.",
            remedy="Check the system behind the sink; the run ends once its output is committed.",
        )


def old_numbers(facts: RunFacts) -> Iterator[Finding]:
    """A job master that reports, but stores no samples of the subtasks."""
    at = facts.old_since
    if at is None or facts.live.ending or silent_since(facts.live.at, facts.now):
        return
    age = facts.age(at)
    yield Finding(
        sentence=f"The numbers of the subtasks are {age} old, of {formats.utc(at)}: the job master reports, but stores "
        "no history.",
        since=at,
    )


def silent_slot(facts: RunFacts) -> Iterator[Finding]:
    """A slot that sends no heartbeat. The master ends the attempt after `heartbeat_timeout_ms`."""
    silent = [slot for slot in facts.live.slots if (slot.seen_ms_ago or 0.0) >= MAX_SLOT_SILENCE_MS]
    if not silent:
        return
    slot = max(silent, key=lambda slot: slot.seen_ms_ago or 0.0)
    suffix = f"; {len(silent) - 1} more are silent too" if len(silent) > 1 else ""
    where = f" on {slot.host}" if slot.host else ""
    pid = f", process {slot.pid}" if slot.pid else ""
    yield Finding(
        sentence=f"Slot {slot.index}{where}{pid} has sent nothing for {formats.duration(slot.seen_ms_ago)}{suffix}. "
        "It counts as lost after the heartbeat timeout, and the run restarts."
    )


def standing_stages(facts: RunFacts) -> Iterator[Finding]:
    for stage in facts.stages:
        name = f"The PySpark stage of {facts.operator(stage.operator)}"
        if stage.is_restarting:
            text = f"{name} has failed {stage.deaths} times and is restarting. {stage.reason}"
        elif stage.owners:
            limit = "WEIR_STANDING_STAGES sets the limit"
            text = f"{name} is waiting: the limit of standing stages is reached by {stage.owners}; {limit}."
        elif facts.now - stage.created_at > MAX_STAGE_WAIT:
            text = f"{name} is waiting: no Celery worker of the queue standing has claimed it."
        else:
            continue
        yield Finding(sentence=text, operator=stage.operator)


def sink_backlog(facts: RunFacts) -> Iterator[Finding]:
    if facts.live.sources_paused:
        behind = [stage.operator for stage in facts.stages]
        by = f" Its PySpark stage is not running: {names(map(facts.operator, behind))}." if behind else ""
        yield Finding(
            sentence="The sources are paused: a sink has too many committed epochs that are not delivered yet." + by,
            operator=behind[0] if behind else "",
        )
