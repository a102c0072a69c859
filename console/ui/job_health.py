"""The health of a job on its page: the verdict, and what a failure would cost now."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from console.health.findings import Finding, Verdict
from console.health.recovery import RecoveryHorizon, recovery_horizon
from console.health.rules import workers
from console.health.rules.attempts import restart_number
from console.health.verdicts import verdict_with_facts
from console.jobs.models import Job, Run
from runtime.core.job.lifecycle import FLOWING_STATES, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthView:
    """The health of a run on its job's page.

    `restart`: the number of the restart that is under way, if the failures before it count; else "". `skew`: by
    operator, while records flow. `lag_ms` and `behind_newest_ms`: see `console.metrics.lag`; None: unknown, or old.
    `next_attempt_at`: begin of the attempt after the newest failure.
    """

    verdict: Verdict
    horizon: RecoveryHorizon | None
    restart: str = ""
    skew: Mapping[str, float] = field(default_factory=dict)
    lag_ms: int | None = None
    behind_newest_ms: int | None = None
    next_attempt_at: datetime | None = None

    @property
    def first(self) -> Finding | None:
        """The finding of the top line; the page has a panel of its own on a failed run."""
        cause = self.verdict.cause
        return cause if cause and cause.rule != "run-failed" else None


def job_health(job: Job, run: Run | None, restarts_ms: Sequence[float], now: datetime) -> HealthView | None:
    """The health of the job's latest run. `job.health` should be loaded. `restarts_ms`: as in `recovery_horizon`."""
    if run is None:
        return None
    run.job = job
    verdict, facts = verdict_with_facts(run, now)
    restart = restart_number(facts) if run.run_state is RunState.RESTARTING else ""
    return HealthView(
        verdict=verdict,
        horizon=recovery_horizon(run, facts, restarts_ms),
        restart=restart,
        skew=facts.skew,
        lag_ms=None if facts.old_since else facts.lag_ms,
        behind_newest_ms=None if facts.old_since else facts.behind_newest_ms,
        next_attempt_at=facts.attempts[0].next_at if facts.attempts else None,
    )


def silent_since(run: Run | None, now: datetime) -> datetime | None:
    """The time of the job master's last report, if the master of a run whose records flow is silent; else None."""
    return workers.silent_since(run.live_at, now) if run and run.run_state in FLOWING_STATES else None
