"""The buttons of a job: labels, addresses, and the confirmation text of irreversible operations.

`console.operations.legality` decides whether an operation is legal; this module only provides the texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.urls import reverse

from console import formats
from console.checkpoints.models import Checkpoint
from console.checkpoints.selectors import RunProgress
from console.health.recovery import read_horizon
from console.jobs.models import Run
from console.jobs.operator_names import operator_names
from console.metrics.live import Live
from console.operations.legality import AllowedOperation
from console.operations.models import WITH_SAVEPOINT, OperationKind
from console.operations.preview import Number, preview
from console.operations.restore import RepeatedCheckpoints
from console.ui.jobhealth import silent_since

_K = OperationKind
LABELS = {
    _K.START: "Start",
    _K.SAVEPOINT: "Take savepoint",
    _K.RESCALE: "Rescale…",
    _K.STOP: "Stop with savepoint…",
    _K.DRAIN: "Drain and finish…",
    _K.RESTORE: "Restore…",
    _K.ROLLBACK: "Stop and restore…",
    _K.CANCEL: "Cancel…",
}
#: A restore and a rollback are never possible at the same time: their key and their page are the same.
KEYS = {
    _K.START: "b", _K.SAVEPOINT: "s", _K.RESCALE: "p", _K.STOP: "x", _K.DRAIN: "d", _K.RESTORE: "r", _K.ROLLBACK: "r",
    _K.CANCEL: "c",
}  # fmt: skip
_PAGES = {_K.ROLLBACK: _K.RESTORE}
_DANGEROUS_KINDS = (_K.DRAIN, _K.ROLLBACK, _K.CANCEL)
_IMMEDIATE_KINDS = (_K.START, _K.SAVEPOINT)  #: need no confirmation, except a start that repeats output

_STOP_EFFECT = (
    "Open windows are kept in the savepoint, so the job can continue from it later, also at another parallelism. If "
    "the savepoint fails, the run continues."
)
_DRAIN_EFFECT = (
    "Every open window fires early, with the records that it has now, and its result is committed. Then the run "
    "finishes for good."
)
_DRAIN_ADVICE = (
    "Early results are not corrected later: drain only when all data has been read, or when no further data matters."
)
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
        return any(button.kind == _K.RESCALE for button in self.possible)

    @property
    def safe(self) -> tuple[Button, ...]:
        return tuple(button for button in self.possible if not button.dangerous)

    @property
    def dangerous(self) -> tuple[Button, ...]:
        """The buttons of operations that cannot be undone; a page sets them apart."""
        return tuple(button for button in self.possible if button.dangerous)


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """The effects of an operation in sentences and `numbers`, and a gentler alternative."""

    title: str
    sentences: tuple[str, ...]
    numbers: tuple[Number, ...] = ()
    instead: str
    gentler: str = ""  #: the kind of operation that `instead` names, "" if it names none
    dangerous: bool
    verb: str = ""  #: label of the button, if it is not the title
    restores: bool = False  #: the page offers a restore first
    repeats: bool = False  #: repeated output must be accepted
    saves: bool = False  #: takes a savepoint, which can be named and pinned
    run: int | None = None  #: the request is for this run, and refused for a later run


def job_acts(
    job_id: int, acts: Sequence[AllowedOperation], *, start_repeats: bool, suggested: OperationKind | None
) -> JobActs:
    """The operations in the order of a run's life: start, savepoint, rescale, stop, drain, restore, rollback,
    cancel.

    The suggested operation comes first, and a start that repeats output last.
    """
    enabled = {act.act: act.enabled for act in acts}
    possible = [
        Button(
            kind=kind.value,
            key=KEYS[kind],
            label=f"{label}…" if kind is _K.START and start_repeats else label,
            url=reverse(f"ui:{_PAGES.get(kind, kind).value}", args=[job_id]),
            asks=kind not in _IMMEDIATE_KINDS or (kind is _K.START and start_repeats),
            primary=kind is suggested,
            dangerous=kind in _DANGEROUS_KINDS,
        )
        for kind, label in LABELS.items()
        if enabled[kind]
    ]
    possible.sort(key=lambda button: (not button.primary, start_repeats and button.kind == _K.START))
    order = list(LABELS)
    grouped: dict[str, list[str]] = {}
    for act in sorted(acts, key=lambda act: order.index(act.act)):
        if not act.enabled:
            grouped.setdefault(act.reason, []).append(LABELS[act.act].rstrip("…"))
    return JobActs(
        possible=tuple(possible), refused=tuple((tuple(labels), reason) for reason, labels in grouped.items())
    )


def confirmation(kind: str, run: Run | None, reached: RunProgress, live: Live, now: datetime) -> Confirmation:
    """The confirmation of `kind`; `reached` holds the newest checkpoints of the run."""
    found = _texts(kind, run, reached, live)
    if since := silent_since(run, now):
        silence = formats.duration((now - since) / timedelta(milliseconds=1))
        found = replace(found, sentences=(*found.sentences, _SILENCE.format(silence)))
    horizon = read_horizon(run, now) if run and kind == OperationKind.CANCEL else None
    begin = reached.continuable.triggered_at if reached.continuable else None
    replayed = horizon.records_from(begin) if horizon else None
    numbers, own = preview(kind, run, reached, replayed), run.pk if run else None
    return replace(found, numbers=numbers, saves=kind in WITH_SAVEPOINT, run=own)


def _texts(kind: str, run: Run | None, reached: RunProgress, live: Live) -> Confirmation:
    where = f"run {run.pk}" if run else "the run"
    match OperationKind(kind):
        case OperationKind.SAVEPOINT:
            return _savepoint(where)
        case OperationKind.STOP:
            return _stop(where)
        case OperationKind.DRAIN:
            return _drain(where, live, operator_names(run.version.graph if run else None))
        case _:
            return _cancel_batch(where) if run and run.version.is_batch else _cancel(where, reached)


def start_confirmation(newest: Checkpoint | None, repeated: RepeatedCheckpoints | None, wait: str) -> Confirmation:
    """The confirmation of a start from empty state.

    `newest` is the checkpoint to restore instead; `wait` says why the run would wait.
    """
    again = f"{repeated}; the output up to there is written a second time." if repeated else ""
    instead = f"To continue from the newest state, restore {newest} instead." if newest else ""
    return Confirmation(
        title="Start from empty state",
        sentences=tuple(filter(None, ("A new run reads all input from the beginning.", again, wait))),
        instead=instead,
        dangerous=repeated is not None,
        restores=newest is not None,
        repeats=repeated is not None,
    )


def discard_confirmation(checkpoint: Checkpoint) -> Confirmation:
    """The confirmation of discarding a savepoint."""
    held = formats.size(checkpoint.size_bytes)
    return Confirmation(
        title=f"Discard {checkpoint}",
        verb="Discard savepoint",
        sentences=(
            f"The files of {checkpoint} ({held}) are deleted. It can no longer be restored.",
            "Its row and its statistics stay.",
        ),
        instead="To keep a copy, copy it to a folder first: a savepoint is self-contained.",
        dangerous=True,
    )


def _savepoint(where: str) -> Confirmation:
    return Confirmation(
        title="Take savepoint",
        sentences=(
            f"Weir takes a savepoint of {where}, which continues to run.",
            "The savepoint contains all of its files, and retention never deletes it.",
        ),
        instead="",
        dangerous=False,
    )


def _stop(where: str) -> Confirmation:
    return Confirmation(
        title="Stop with savepoint",
        sentences=(
            f"Weir takes a savepoint of {where}, commits the output up to it and ends the run.",
            _STOP_EFFECT,
        ),
        instead="To keep the run going, take a savepoint without stopping.",
        gentler="savepoint",
        dangerous=False,
    )


def _drain(where: str, live: Live, names: Mapping[str, str]) -> Confirmation:
    finished = [names.get(uid, uid) for uid, numbers in live.operators.items() if numbers.finished]
    already = f" Already finished: {', '.join(finished)}." if finished else ""
    return Confirmation(
        title="Drain and finish",
        sentences=(
            f"The sources of {where} stop at their current positions. {_DRAIN_EFFECT}{already}",
            _DRAIN_ADVICE,
        ),
        instead="To continue the job later, stop it with a savepoint instead.",
        gentler="stop",
        dangerous=True,
    )


def _cancel_batch(where: str) -> Confirmation:
    return Confirmation(
        title="Cancel",
        verb="Cancel the run",
        sentences=(
            f"Spark ends the tasks of {where} at once.",
            "A run in BATCH commits its output once, at its end: no output of this run is committed.",
            "A later start reads all input again.",
        ),
        instead="To keep its work, wait until the run has finished.",
        dangerous=True,
    )


def _cancel(where: str, reached: RunProgress) -> Confirmation:
    committed = reached.committed
    lost = f"Output since {committed} is not committed." if committed else "No output of this run is committed."
    if reached.newest is None:
        back = "This run has completed no checkpoint: its output is not committed, and its state cannot be restored."
    elif reached.continuable is None:
        back = f"{lost} A run cannot continue from {reached.newest}."
    else:
        back = f"{lost} A restore from {reached.continuable} reads all input after it again."
        if committed is not None and committed.number > reached.continuable.number:
            back += f" The output from there to {committed} is then written a second time."
    return Confirmation(
        title="Cancel",
        verb="Cancel the run",
        sentences=(f"The subtasks of {where} end at once, without a savepoint.", back),
        instead="To lose no work, stop it with a savepoint instead.",
        gentler="stop",
        dangerous=True,
    )
