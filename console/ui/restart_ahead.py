"""The restart that is under way, for the head of a job's page: from where, which step, and for how long."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Final

from console import formats
from console.checkpoints.models import Checkpoint, Kind
from console.jobs.models import AttemptOutcome, Run
from console.metrics.live import Live
from console.metrics.selectors import records_read
from console.pages.lines import AttemptLine
from runtime.core.job.lifecycle import RunState

_MASTER_GONE: Final = (AttemptOutcome.LOST, AttemptOutcome.RELEASED)  #: ends of attempts whose job master ended too
#: States in which no attempt runs, or an attempt is being started.
STATES_BETWEEN_ATTEMPTS: Final = (RunState.QUEUED, RunState.STARTING, RunState.WAITING, RunState.RESTARTING)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartAhead:
    """A restart that is under way.

    Args:
        checkpoint: None: the restart begins with the snapshot that the run restored, or with the start of the run.
        records: records of the sources since then, which are replayed; None if they are not known.
        step: the step of the launch that is under way.
        left_ms: expected time until the run is running; None if `usual_ms` is None or has passed.
        usual_ms: median time of the newest restarts; None without history, and if a new Spark application starts: a
            restart within an application is far shorter. `restarts`: their number.
    """

    checkpoint: Checkpoint | None
    records: int | None
    step: str
    left_ms: float | None
    usual_ms: float | None
    restarts: int


def restart_ahead(
    run: Run | None,
    attempts: Sequence[AttemptLine],
    columns: Sequence[Checkpoint],
    live: Live,
    restarts_ms: Sequence[float],
    next_at: datetime | None,
    now: datetime,
) -> RestartAhead | None:
    """The restart of a run whose attempt has ended; None for other runs. A query or two.

    `attempts`: of the run, newest first. `columns`: the newest checkpoints of the job. `live`: its report. `next_at`:
    begin of the next attempt, after a delay.
    """
    ended_at = next((attempt.ended_at for attempt in attempts if attempt.ended_at), None)
    if run is None or run.version.is_batch or run.run_state not in STATES_BETWEEN_ATTEMPTS or ended_at is None:
        return None
    present = attempts[0] if attempts[0].ended_at is None else None
    if present is not None and present.restored_kind:
        checkpoint = next((row for row in columns if row.number == present.restored_number), None)
    else:
        candidates = (
            row for row in columns if row.run_id == run.pk and row.kind == Kind.CHECKPOINT and row.is_restorable
        )
        checkpoint = next(candidates, None)
    usual_ms = median(restarts_ms) if restarts_ms and not _starts_spark(run, attempts, present, live) else None
    left_ms = None if usual_ms is None else usual_ms - (now - ended_at) / timedelta(milliseconds=1)
    return RestartAhead(
        checkpoint=checkpoint,
        records=_records(run, checkpoint, now),
        step=_step(run, present, live, next_at, now),
        left_ms=left_ms if left_ms is not None and left_ms > 0 else None,
        usual_ms=usual_ms,
        restarts=len(restarts_ms),
    )


def _starts_spark(run: Run, attempts: Sequence[AttemptLine], present: AttemptLine | None, live: Live) -> bool:
    """Whether a new Spark application starts: for another job master, and after the loss of the application."""
    before = next((attempt for attempt in attempts if attempt.ended_at), None)
    has_new_master = run.run_state is RunState.QUEUED or (before is not None and before.outcome in _MASTER_GONE)
    is_launching = live.launch is not None and live.launch.step == "spark" and _is_report_of(live, present)
    return has_new_master or is_launching


def _records(run: Run, checkpoint: Checkpoint | None, now: datetime) -> int | None:
    """The records that the run has read since the checkpoint, or since its start."""
    begin = checkpoint.triggered_at if checkpoint and checkpoint.run_id == run.pk else run.started_at
    return None if begin is None else records_read([run.pk], begin, now, is_flowing=False)


def _step(run: Run, attempt: AttemptLine | None, live: Live, next_at: datetime | None, now: datetime) -> str:
    """The step of the launch of `attempt`, as far as its row and the report of the job master show it."""
    if run.run_state is RunState.QUEUED:
        return "waiting for a worker"
    if next_at is not None and next_at > now:
        return f"the next attempt begins in {formats.duration((next_at - now) / timedelta(milliseconds=1))}"
    if run.run_state is RunState.WAITING and live.waiting is not None:
        wait = live.waiting
        return "slots" if wait.is_over else f"waiting for slots: {wait.there} of {wait.wanted} available"
    is_restored, is_reported = attempt is not None and attempt.restored_kind is not None, _is_report_of(live, attempt)
    if is_reported and live.launch is not None:
        launch = live.launch
        return "Spark" if launch.step == "spark" else f"slots: {launch.there} of {launch.wanted} connected"
    if live.deploying_ms is None or not is_reported:
        return "Spark and slots" if is_restored else "job master and inputs"
    total, connected = run.parallelism, len(live.slots)
    if connected < total:
        return f"slots: {connected} of {total} connected"
    return f"operators and restore: {total - len(live.undeployed_slots)} of {total} slots deployed"


def _is_report_of(live: Live, attempt: AttemptLine | None) -> bool:
    began_at = attempt.started_at if attempt else None
    return live.at is not None and began_at is not None and live.at >= began_at
