"""The health of a job for pages: the verdict of the rules, and what a failure would cost now."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Case, F, IntegerField, OuterRef, Q, Subquery, Value, When

from console import formats
from console.health.findings import Finding, Level, Verdict
from console.health.housekeeping import verdicts
from console.health.models import JobHealth
from console.health.recovery import RecoveryHorizon, recovery_horizon
from console.health.rules import workers
from console.health.rules.checkpoints import SLOW
from console.health.rules.flow import BACKPRESSURE
from console.jobs.models import Job, Run
from console.operations.selectors import FoundJobs
from runtime.core.job.lifecycle import FLOWING_STATES, TERMINAL_STATES

MAX_AGE: Final = timedelta(seconds=30)  #: of a stored verdict on a run under way
NOT_CHECKED: Final = "not-checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthView:
    """The health of a run on its job's page. `first` gives the sentence; `others` are less severe."""

    verdict: Verdict
    horizon: RecoveryHorizon | None

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
        """Without `last_known`, and without backpressure by an operator that slow checkpoints name already."""
        findings = [finding for finding in self.verdict.findings[1:] if finding is not self.last_known]
        named = {finding.operator for finding in self.verdict.findings if finding.rule == SLOW}
        return tuple(each for each in findings if each.rule != BACKPRESSURE or each.operator not in named)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLine:
    """The health of a job in the list."""

    level: str = Level.NONE.word
    sentence: str = ""
    last_known: str = ""  #: sentence of a finding of old samples, beside the sentence on their age
    more: int = 0  #: findings beside these


def job_health(job: Job, run: Run | None, now: datetime) -> HealthView | None:
    """The health of the job's latest run, computed now. `job.health` should be loaded."""
    if run is None:
        return None
    run.job = job
    ((_, facts, verdict),) = verdicts([run], now)
    return HealthView(verdict=verdict, horizon=recovery_horizon(run, facts))


def silent_since(run: Run | None, now: datetime) -> datetime | None:
    """The time of the job master's last report, if the master of a run whose records flow is silent; else None."""
    return workers.silent_since(run.live_at, now) if run and run.run_state in FLOWING_STATES else None


def health_line(run: Run | None, stored: JobHealth | None, now: datetime) -> HealthLine:
    """The stored health of the job's latest run. A verdict that is too old is a finding itself."""
    if run is None:
        return HealthLine()
    if stored is None or stored.run_id != run.pk:
        return HealthLine() if run.is_terminal or now - run.created_at < MAX_AGE else _not_checked(run.created_at, now)
    if not run.is_terminal and now - stored.checked_at > MAX_AGE:
        return _not_checked(stored.checked_at, now)
    findings: list[Mapping[str, Any]] = stored.findings
    last_known = next((finding["sentence"] for finding in findings[1:] if finding.get("as_of")), "")
    return HealthLine(
        level=Level(stored.level).word,
        sentence=stored.sentence if findings else "",
        last_known=last_known,
        more=max(0, len(findings) - 1 - bool(last_known)),
    )


def with_health_level(jobs: FoundJobs, now: datetime) -> FoundJobs:
    """The jobs annotated with `shown_level`, the level of their `health_line`. Jobs have their latest run."""
    oldest = now - MAX_AGE
    created = Run.objects.filter(pk=OuterRef("run_pk")).values("created_at")
    is_known, is_over = Q(health__run_id=F("run_pk")), Q(run_state__in=TERMINAL_STATES)
    found: FoundJobs = jobs.annotate(run_created=Subquery(created)).annotate(
        shown_level=Case(
            When(is_known & (is_over | Q(health__checked_at__gte=oldest)), then=F("health__level")),
            When(is_known, then=Value(int(Level.ATTENTION))),
            When(Q(run_pk=None) | is_over | Q(run_created__gt=oldest), then=Value(int(Level.NONE))),
            default=Value(int(Level.ATTENTION)),
            output_field=IntegerField(),
        )
    )
    return found


def _not_checked(since: datetime, now: datetime) -> HealthLine:
    age = formats.duration((now - since) / timedelta(milliseconds=1))
    sentence = f"Health has not been checked for {age}: no Celery worker of the queue housekeeping runs."
    return HealthLine(level=Level.ATTENTION.word, sentence=sentence)
