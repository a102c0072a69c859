"""The buttons of a job and the confirmations of its operations, by the class of each operation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.urls import reverse

from console import formats
from console.checkpoints.selectors import RunProgress
from console.health.recovery import read_horizon
from console.jobs.models import Run
from console.metrics.live import Live
from console.operations.kinds.job.delegated import DelegatedOperation
from console.operations.legality import AllowedOperation
from console.operations.models import OperationKind
from console.operations.operation_type import JobButton, JobOperation
from console.operations.preview import Confirmation
from console.operations.registry import operation_of
from console.ui.job_health import silent_since

_SILENCE = (
    "The job master has not reported for {}. The operation waits until it reports, or until another worker continues "
    "the run."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    kind: str
    label: str
    key: str  #: letter that reaches the button
    url: str
    asks: bool  #: leads to a confirmation page
    primary: bool
    dangerous: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobActs:
    """The operations on a job: buttons of those that are possible now, and the others by their reason."""

    possible: tuple[Button, ...]
    refused: tuple[tuple[tuple[str, ...], str], ...]  #: (labels, reason)

    @property
    def may_rescale(self) -> bool:
        return any(button.kind == OperationKind.RESCALE for button in self.possible)

    @property
    def safe(self) -> tuple[Button, ...]:
        return tuple(button for button in self.possible if not button.dangerous)

    @property
    def dangerous(self) -> tuple[Button, ...]:
        """The buttons of operations that cannot be undone; a page sets them apart."""
        return tuple(button for button in self.possible if button.dangerous)


def job_acts(
    job_id: int, acts: Sequence[AllowedOperation], *, start_repeats: bool, suggested: OperationKind | None
) -> JobActs:
    """The operations in the order of a run's life: start, savepoint, rescale, stop, drain, restore, rollback,
    cancel.

    The suggested operation comes first, and a start that repeats output last.
    """
    buttons = {act.act: operation_of(JobOperation, act.act).button for act in acts}
    acts = sorted(acts, key=lambda act: buttons[act.act].place)
    possible = [
        _button(job_id, act.act, buttons[act.act], is_suggested=act.act is suggested, start_repeats=start_repeats)
        for act in acts
        if act.enabled
    ]
    possible.sort(key=lambda button: (not button.primary, start_repeats and button.kind == OperationKind.START))
    grouped: dict[str, list[str]] = {}
    for act in acts:
        if not act.enabled:
            grouped.setdefault(act.reason, []).append(buttons[act.act].label.rstrip("…"))
    return JobActs(
        possible=tuple(possible), refused=tuple((tuple(labels), reason) for reason, labels in grouped.items())
    )


def _button(job_id: int, kind: OperationKind, button: JobButton, *, is_suggested: bool, start_repeats: bool) -> Button:
    repeats = kind is OperationKind.START and start_repeats
    return Button(
        kind=kind.value,
        key=button.key,
        label=f"{button.label}…" if repeats else button.label,
        url=reverse(f"ui:{(button.page or kind).value}", args=[job_id]),
        asks=button.asks or repeats,
        primary=is_suggested,
        dangerous=button.is_dangerous,
    )


def confirmation(kind: str, run: Run | None, reached: RunProgress, live: Live, now: datetime) -> Confirmation:
    """The confirmation of `kind`; `reached` holds the newest checkpoints of the run."""
    operation = operation_of(DelegatedOperation, kind)
    texts = operation.confirmation(run, reached, live)
    sentences = texts.sentences
    if since := silent_since(run, now):
        silence = formats.duration((now - since) / timedelta(milliseconds=1))
        sentences = (*sentences, _SILENCE.format(silence))
    horizon = read_horizon(run, now) if run and not operation.takes_savepoint else None
    begin = reached.continuable.triggered_at if reached.continuable else None
    numbers = operation.preview(run, reached, horizon.records_from(begin) if horizon else None)
    return replace(
        texts, sentences=sentences, numbers=numbers, saves=operation.takes_savepoint, run=run.pk if run else None
    )
