"""The health of a job for pages: the verdict of the rules, and what a failure would cost now."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Case, F, FloatField, Q, Value, When

from console.health.findings import Finding, Level, Verdict
from console.health.housekeeping import verdicts
from console.health.models import JobHealth
from console.health.recovery import RecoveryHorizon, recovery_horizon
from console.health.rules import workers
from console.health.rules.attempts import restart_number
from console.health.rules.checkpoints import SLOW
from console.health.rules.flow import BACKPRESSURE, FALLS_BEHIND
from console.jobs.models import Job, Run
from console.runs.selectors import FoundJobs
from console.ui.status import UNKNOWN_HEALTH
from runtime.core.job.lifecycle import FLOWING_STATES, TERMINAL_STATES, RunState

MAX_AGE: Final = timedelta(seconds=30)  #: of a stored verdict on a run under way
_UNKNOWN_LEVEL: Final = 1.5  #: jobs of `UNKNOWN_HEALTH` come before jobs that are well


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthView:
    """The health of a run on its job's page. `first` gives the sentence; `others` are less severe.

    `restart`: the number of the restart that is under way, if the failures before it count; else "". `skew`: by
    operator, while records flow. `lag_ms`: see `console.metrics.lag`; None: unknown, or old.
    `next_attempt_at`: begin of the attempt after the newest failure.
    """

    verdict: Verdict
    horizon: RecoveryHorizon | None
    restart: str = ""
    skew: Mapping[str, float] = field(default_factory=dict)
    lag_ms: int | None = None
    next_attempt_at: datetime | None = None

    @property
    def level(self) -> str:
        return self.verdict.level.word

    @property
    def first(self) -> Finding | None:
        """The finding of the top line; the page has a panel of its own on a failed run."""
        findings = self.verdict.findings
        return findings[0] if findings and findings[0].rule != "run-failed" else None

    @property
    def last_known(self) -> Finding | None:
        """The most severe finding of samples that are old; the top line has it beside the age of the samples."""
        return next((finding for finding in self.verdict.findings[1:] if finding.as_of), None)

    @property
    def others(self) -> tuple[Finding, ...]:
        """Without `last_known`, and without findings that repeat another."""
        findings = self.verdict.findings
        repeated = _repetitions((finding.rule, finding.operator) for finding in findings)
        candidates = [finding for finding in findings[1:] if finding is not self.last_known]
        return tuple(each for each in candidates if (each.rule, each.operator) not in repeated)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLine:
    """The health of a job in the list."""

    level: str = Level.NONE.word
    sentence: str = ""
    since: datetime | None = None  #: begin of the first finding
    last_known: str = ""  #: sentence of a finding of old samples, beside the sentence on their age
    checked_at: datetime | None = None  #: time of a verdict that is too old; None: it is recent
    more: int = 0  #: findings beside these


def job_health(job: Job, run: Run | None, restarts_ms: Sequence[float], now: datetime) -> HealthView | None:
    """The health of the job's latest run, computed now. `job.health` should be loaded. `restarts_ms`: as in
    `recovery_horizon`.
    """
    if run is None:
        return None
    run.job = job
    ((_, facts, verdict),) = verdicts([run], now)
    restart = restart_number(facts) if run.run_state is RunState.RESTARTING else ""
    return HealthView(
        verdict=verdict,
        horizon=recovery_horizon(run, facts, restarts_ms),
        restart=restart,
        skew=facts.skew,
        lag_ms=None if facts.old_since or facts.lag is None else facts.lag.ms,
        next_attempt_at=facts.attempts[0].next_at if facts.attempts else None,
    )


def silent_since(run: Run | None, now: datetime) -> datetime | None:
    """The time of the job master's last report, if the master of a run whose records flow is silent; else None."""
    return workers.silent_since(run.live_at, now) if run and run.run_state in FLOWING_STATES else None


def health_line(run: Run | None, stored: JobHealth | None, now: datetime) -> HealthLine:
    """The stored health of the job's latest run. A verdict that is too old is marked; then no run looks well.

    A verdict from before the end of the run is none on its end.
    """
    if run is None:
        return HealthLine()
    if stored is None or stored.run_id != run.pk or (run.is_terminal and not stored.is_final):
        if run.run_state is RunState.FAILED:
            return HealthLine(level=Level.FAILED.word)
        is_new = run.is_terminal or now - run.created_at < MAX_AGE
        return HealthLine() if is_new else HealthLine(level=UNKNOWN_HEALTH)
    is_old = not run.is_terminal and now - stored.checked_at > MAX_AGE
    findings: list[Mapping[str, Any]] = stored.findings
    last_known = next((finding for finding in findings[1:] if finding.get("as_of")), None)
    since = findings[0].get("since") if findings else None
    repeated = _repetitions(map(_rule_and_operator, findings))
    candidates = [finding for finding in findings[1:] if finding is not last_known]
    return HealthLine(
        level=UNKNOWN_HEALTH if is_old and stored.level <= Level.OK else Level(stored.level).word,
        sentence=stored.sentence if findings or is_old else "",
        since=datetime.fromisoformat(since) if since else None,
        last_known=last_known["sentence"] if last_known else "",
        checked_at=stored.checked_at if is_old else None,
        more=sum(_rule_and_operator(finding) not in repeated for finding in candidates),
    )


def _rule_and_operator(stored: Mapping[str, Any]) -> tuple[str, str]:
    return stored.get("rule", ""), stored.get("operator", "")


def _repetitions(findings: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Backpressure by operators that another finding names already. Findings are (rule, operator)."""
    return {(BACKPRESSURE, operator) for rule, operator in findings if rule in (SLOW, FALLS_BEHIND)}


def with_health_level(jobs: FoundJobs, now: datetime) -> FoundJobs:
    """The jobs annotated with `shown_level`, the level of their `health_line`. Jobs have their latest run."""
    is_known, is_over = Q(health__run_id=F("run_pk")), Q(run_state__in=TERMINAL_STATES)
    oldest = now - MAX_AGE
    is_recent, is_final = Q(health__checked_at__gte=oldest), Q(health__is_final=True)
    is_valid = is_final | ~is_over & (is_recent | Q(health__level__gt=Level.OK))
    rows: FoundJobs = jobs.annotate(
        shown_level=Case(
            When(is_known & is_valid, then=F("health__level")),
            When(run_state=RunState.FAILED, then=Value(float(Level.FAILED))),
            When(is_known & ~is_over, then=Value(_UNKNOWN_LEVEL)),
            When(Q(run_pk=None) | is_over | Q(latest_run__created_at__gt=oldest), then=Value(float(Level.NONE))),
            default=Value(_UNKNOWN_LEVEL),
            output_field=FloatField(),
        )
    )
    return rows
