"""Warnings below a job's state: the facts that an operator needs first.

Rows and the live report show the facts: no checkpoint completes, an outage of storage, slots above their memory
limit, an unreadable checkpoint, a stopped standing stage.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings

from console import formats
from console.checkpoints.models import Checkpoint
from console.checkpoints.selectors import MAX_COUNTED_FAILURES, failures_after, newest_completed_checkpoint
from console.jobs.models import Attempt, AttemptOutcome, Run, StageState, StandingStage
from runtime.core.job.lifecycle import RunState
from runtime.core.job.restart_strategy import MIN_RUN_WITHIN_MEMORY_MS, OUTAGE_CODE, SLOT_OUT_OF_MEMORY_CODE

OVERDUE_INTERVALS: Final = 3
MIN_OVERDUE: Final = timedelta(seconds=10)  #: minimum age of an overdue checkpoint; intervals may be as short as 100 ms
MIN_OVERDUE_FIRST: Final = timedelta(seconds=60)  #: the first checkpoint follows deployment and restore
MAX_STAGE_WAIT: Final = timedelta(seconds=15)  #: for a free worker, while fewer than WEIR_STANDING_STAGES run
_CHECKPOINTING: Final = (RunState.RUNNING, RunState.RESTARTING)
_NOT_RUNNING: Final = (RunState.STARTING, RunState.RESTARTING)
_RECENT_MEMORY: Final = timedelta(milliseconds=MIN_RUN_WITHIN_MEMORY_MS)  #: a run that lasts longer is healthy again


@dataclass(frozen=True, slots=True)
class JobWarning:
    """A warning, and the checkpoint that it concerns, if any."""

    text: str
    checkpoint: Checkpoint | None = None


def warnings(run: Run | None, now: datetime) -> tuple[JobWarning, ...]:
    """The warnings, most severe first. An ended run has none, except for unreadable checkpoints."""
    if run is None:
        return ()
    failed = Attempt.objects.filter(run=run, outcome=AttemptOutcome.FAILED).order_by("-token")
    attempt = None if run.is_terminal else failed.first()
    detail: dict[str, Any] = (attempt.detail if attempt else None) or {}
    found = (_outage(run, detail, now), _memory(run, attempt, detail, now), _overdue(run, now), _unreadable(run))
    return (*(warning for warning in found if warning is not None), *_stages(run, now))


def _outage(run: Run, detail: dict[str, Any], now: datetime) -> JobWarning | None:
    if run.run_state not in _NOT_RUNNING or detail.get("code") != OUTAGE_CODE:
        return None
    tries = detail.get("tries", 1)
    wait_ms = float(detail.get("next_at") or 0) - now.timestamp() * 1000
    following = f"the next attempt is in {formats.duration(wait_ms)}" if wait_ms > 0 else "it is being retried now"
    text = f"Waiting for storage or a service. {detail.get('message', '')}. Failed {tries} times in a row; {following}."
    return JobWarning(f"{text} This does not count as a restart, and the run continues by itself.")


def _memory(run: Run, attempt: Attempt | None, detail: dict[str, Any], now: datetime) -> JobWarning | None:
    """The warning of slots above their memory limit, hidden by the state: between such failures the run is RUNNING."""
    if attempt is None or detail.get("code") != SLOT_OUT_OF_MEMORY_CODE:
        return None
    if run.run_state not in _NOT_RUNNING and now - (attempt.ended_at or now) > _RECENT_MEMORY:
        return None
    tries = int(detail.get("tries", 1))
    often = "" if tries == 1 else f" {tries} consecutive attempts have failed like this."
    return JobWarning(
        f"{detail.get('message', '')}{often} Each attempt restores the last checkpoint; no host was lost."
    )


def overdue(run: Run, completed: Checkpoint | None, now: datetime) -> formats.Quantity | None:
    """The time since `completed`, the run's newest completed checkpoint, or since its start; None if not overdue."""
    interval_ms = run.version.settings.get("checkpoint_interval_ms")
    if run.version.is_batch or run.run_state not in _CHECKPOINTING or run.started_at is None or not interval_ms:
        return None
    since = (completed.completed_at if completed else None) or run.started_at
    least = MIN_OVERDUE if completed else MIN_OVERDUE_FIRST
    if now - since <= max(OVERDUE_INTERVALS * timedelta(milliseconds=interval_ms), least):
        return None
    return formats.duration((now - since).total_seconds() * 1000)


def _overdue(run: Run, now: datetime) -> JobWarning | None:
    completed = newest_completed_checkpoint(run)
    lasting = overdue(run, completed, now)
    if lasting is None:
        return None
    failed, newest = failures_after(run, completed)
    every = formats.duration(run.version.settings["checkpoint_interval_ms"])
    text = f"No checkpoint has completed for {lasting}; one is due every {every}."
    if newest is None:
        return JobWarning(f"{text} No checkpoint has failed since. A failure now would repeat all work since then.")
    reason = newest.reason.replace("_", " ") + (f": {newest.detail}" if newest.detail else "")
    number = f"{failed} or more" if failed == MAX_COUNTED_FAILURES else str(failed)
    return JobWarning(f"{text} {number} failed since then, {newest} with {reason}.", newest)


def _unreadable(run: Run) -> JobWarning | None:
    folders = (run.live or {}).get("unreadable") or ()
    if not folders:
        return None
    named = ", ".join(str(folder) for folder in folders)
    return JobWarning(
        f"The manifest of {named} cannot be read: it cannot be restored, and files that it may need are kept. "
        "Repair the manifest, or discard the savepoint."
    )


def _stages(run: Run, now: datetime) -> list[JobWarning]:
    """Warnings of standing stages without a running process, with the cause."""
    if run.is_terminal:
        return []
    found = []
    for stage in StandingStage.objects.filter(run=run, state__in=(StageState.WAITING, StageState.RESTARTING)):
        name = f"The PySpark stage of {stage.operator}"
        if stage.state == StageState.RESTARTING:
            found.append(JobWarning(f"{name} has failed {stage.deaths} times and is restarting. {stage.reason}"))
        elif taken := _stage_slot_owners():
            limit = "WEIR_STANDING_STAGES sets the limit"
            found.append(JobWarning(f"{name} is waiting: the limit of standing stages is reached by {taken}; {limit}."))
        elif now - stage.created_at > MAX_STAGE_WAIT:
            found.append(JobWarning(f"{name} is waiting: no Celery worker of the queue standing has claimed it."))
    return found


def _stage_slot_owners() -> str:
    """Job and operator of each claimed standing stage if WEIR_STANDING_STAGES is reached; else ""."""
    held = StandingStage.objects.exclude(lease_owner="").select_related("run__job").order_by("run", "operator")
    taken = [f"{stage.run.job.name} ({stage.operator})" for stage in held]
    return ", ".join(taken) if len(taken) >= settings.WEIR_STANDING_STAGES else ""
