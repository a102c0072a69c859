"""The list of jobs, prepared for its template: a line per job, and counts by state."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from console import formats
from console.health.findings import Verdict
from console.health.verdicts import listed_verdicts
from console.metrics.live import Live, live_metrics
from console.metrics.recent import RecentNumbers
from console.pages.selectors import JobRow
from console.ui.flow import Flow, flow_of
from console.ui.job_health import silent_since
from console.ui.job_page import desired_state, state_since
from console.ui.last_restart import LastRestart, last_restart
from console.ui.plots.sparkline import Sparkline, sparkline
from runtime.core.job.lifecycle import RunState

_GROUPS = {
    RunState.RUNNING: "running",
    RunState.RESTARTING: "attention",
    RunState.FAILED: "failed",
    RunState.FINISHED: "ended",
    RunState.STOPPED: "ended",
    RunState.CANCELED: "ended",
}
LABELS = {"running": "Running", "moving": "In transition", "attention": "Restarting", "failed": "Failed",
          "ended": "Finished or stopped", "new": "Never started"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLine(JobRow):
    """A job in the list. `flow`: None without recent metrics; then the lag is unknown too.

    `finding`: the sentence of the verdict if the job is not well, or the last known one. `is_old`: the verdict is too
    old; it is the last known one.
    """

    live: Live
    wanted: str  #: desired state, if it differs from the actual state; a failed run should still be running
    since: datetime | None  #: begin of the state of the run
    last_restart: LastRestart | None  #: while it is recent, as on the page of the job
    health: Verdict
    finding: str
    is_old: bool
    flow: Flow | None
    rates: Sparkline | None
    checkpoints: Sparkline | None


def states_of(group: str) -> frozenset[str | None]:
    """Run states that belong to `group`; None is the state of a job without runs."""
    return frozenset(state for state in (*RunState, None) if _group(state) == group)


def tally(counts: Mapping[str | None, int]) -> list[tuple[str, str, int]]:
    """(group, label, number) of groups that have jobs; `counts` are by state of the latest run."""
    counted: Counter[str] = Counter()
    for state, jobs in counts.items():
        counted[_group(state)] += jobs
    return [(group, words, counted[group]) for group, words in LABELS.items() if counted[group]]


def _group(state: str | None) -> str:
    return "new" if state is None else _GROUPS.get(RunState(state), "moving")


def job_lines(rows: Sequence[JobRow], recent: Mapping[int, RecentNumbers], now: datetime) -> list[JobLine]:
    """The lines of `rows`, whose jobs are loaded with their health. `recent`: by run."""
    verdicts = listed_verdicts([(row.run, getattr(row.job, "health", None)) for row in rows], now)
    return [
        _job_line(row, verdict, recent.get(row.run.pk) if row.run else None, now)
        for row, verdict in zip(rows, verdicts, strict=True)
    ]


def _job_line(row: JobRow, verdict: Verdict, recent: RecentNumbers | None, now: datetime) -> JobLine:
    numbers = live_metrics(row.run)
    active = (row.active,) if row.active else ()
    flow = flow_of(row.run, numbers, is_silent=silent_since(row.run, now) is not None)
    rate, took_ms = flow.rate_in if flow else None, row.checkpoint.duration_ms if row.checkpoint else None
    return JobLine(
        job=row.job,
        run=row.run,
        checkpoint=row.checkpoint,
        active=row.active,
        version=row.version,
        parallelism=row.parallelism,
        live=numbers,
        failed_at=row.failed_at,
        wanted=desired_state(row.job, row.run, row.failure_code, active),
        restarts=row.restarts,
        since=state_since(row.run, row.failed_at, active),
        last_restart=last_restart(row.run, row.attempts, verdict, now),
        health=verdict,
        finding=verdict.sentence if verdict.findings or verdict.is_old else "",
        is_old=verdict.is_old,
        flow=flow,
        lag_ms=row.lag_ms if flow else None,
        rates=sparkline("Records read", recent.rates, rate, formats.rate) if recent else None,
        checkpoints=(
            sparkline("Longest checkpoint", recent.checkpoint_ms, took_ms, formats.duration) if recent else None
        ),
    )
