"""Events of a job on the time axis: restarts, failures, savepoints, new versions and operations. A single query.

A savepoint stands at its trigger, a failed one at its failure.

A mark has a label of a few words beside it where the axis has room; those of restarts and failures may also stand
below it. The server does not know the width of the axis: labels are placed for `_AXIS_PX`, and the stylesheet hides
them on narrower pages.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from django.urls import reverse
from django.utils.text import Truncator

from console import formats
from console.checkpoints.models import NOT_FAILURES
from console.jobs.models import Job
from console.metrics.events import event_rows
from console.operations.registry import operation_types
from console.ui.plots.window import Window
from runtime.core.job.lifecycle import RunState
from runtime.core.snapshot.failure_reason import FailureReason

FAILED_CHECKPOINT: Final = "failed-checkpoint"
MAX_MARKS: Final = 60  #: newest events of a kind that are drawn
MAX_FAILURES: Final = 20  #: newest failed checkpoints of the job whose durations are shown, for each reason
#: Operations that change the run; savepoints have marks of their own.
_OPERATIONS: Final = [each.kind.value for each in operation_types() if each.changes_run]
#: States of a run whose attempt is being started.
_STARTING: Final = [RunState.RESTARTING.value, RunState.STARTING.value, RunState.WAITING.value]
#: Reasons of failed checkpoints whose durations are shown.
_FAILURES: Final = [reason.value for reason in FailureReason if reason not in NOT_FAILURES]
#: Kinds in the order in which they get the room for labels.
_LABEL_ORDER: Final = ("failure", "restart", "failed-savepoint", "savepoint", "version", "operation")
_AXIS_PX: Final = 800
_LETTER: Final = 7.2 / _AXIS_PX * 100  #: width of a letter of a label in percent of the axis, in a wide font
_HALF_MARK: Final = 10 / _AXIS_PX * 100  #: of a mark, with the space to its label
_MAX_LABEL: Final = 64  #: letters
_MAX_LABELS: Final = 60  #: to place, of a crowded axis

_Extent = tuple[float, float]  #: from, to, in percent of the axis


@dataclass(frozen=True, slots=True)
class LabelPlace:
    """The place of a label: on the left of its mark or on the right, beside the mark or below it."""

    is_left: bool
    is_below: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """An event. `at` is a percentage of the axis, `has_rule`: it is drawn through all plots.

    `place`: of the label; None: there is no room for it.
    """

    kind: str
    at: float
    time: datetime
    about: str
    label: str
    href: str
    place: LabelPlace | None = None

    @property
    def has_rule(self) -> bool:
        return self.kind in ("restart", "failure")

    @property
    def may_be_below(self) -> bool:
        """Whether its label may stand below the axis: a failure is worth a second row."""
        return self.has_rule or self.kind == "failed-savepoint"


@dataclass(frozen=True, slots=True)
class Event:
    """A row of `_EVENTS`. `restored`: of a restart, `restored checkpoint 7`, or `restoring …` while it is under way.

    `took_ms`: duration of a failed checkpoint or savepoint, if it is known.
    """

    kind: str
    at: datetime
    ref: str
    words: str
    restored: str
    took_ms: float | None

    @property
    def is_failure(self) -> bool:
        """Whether it is a failed checkpoint or savepoint."""
        return self.kind in (FAILED_CHECKPOINT, "failed-savepoint")

    @property
    def failure(self) -> str:
        """A failed checkpoint or savepoint in words."""
        noun = "Checkpoint" if self.kind == FAILED_CHECKPOINT else "Savepoint"
        took = "" if self.took_ms is None else f" after {formats.duration(self.took_ms)}"
        return f"{noun} {self.words}{took}"

    @property
    def cause(self) -> str:
        """The first clause of a reason, which may be a sentence."""
        return self.words.partition(":")[0].removesuffix(".")


@dataclass(frozen=True, slots=True)
class ListedEvent:
    """An event without a mark, in the list of events."""

    time: datetime
    about: str
    href: str


@dataclass(frozen=True, slots=True)
class _Kind:
    """Text, label and address of a kind of event."""

    about: Callable[[Event], str]
    label: Callable[[Event], str]
    href: Callable[[Event], str]


def _restart(event: Event) -> str:
    _, _, checkpoint = event.restored.partition(" ")
    origin = f" from {checkpoint}" if checkpoint else ""
    return f"Run {event.ref} restarted{origin}" + (f": {event.words}" if event.words else "")


def _restart_label(event: Event) -> str:
    outcome = event.restored or "restarted"
    return f"{event.cause}: {outcome}" if event.cause else outcome


def _savepoint(event: Event) -> str:
    return f"savepoint {event.words.replace('_', ' ')}"


_KINDS: Final[Mapping[str, _Kind]] = {
    "operation": _Kind(
        lambda event: event.words.capitalize(),
        lambda event: event.words.partition(",")[0],
        lambda event: reverse("ui:operation", args=[event.ref]),
    ),
    "version": _Kind(
        lambda event: f"Version {event.ref} created", lambda event: f"version {event.ref}", lambda _: "#version-head"
    ),
    "savepoint": _Kind(
        lambda event: _savepoint(event).capitalize(),
        lambda event: _savepoint(event).removesuffix(" completed"),
        lambda event: reverse("ui:checkpoint", args=[event.ref]),
    ),
    "failed-savepoint": _Kind(
        lambda event: event.failure,
        _savepoint,
        lambda event: reverse("ui:checkpoint", args=[event.ref]),
    ),
    "restart": _Kind(_restart, _restart_label, lambda event: reverse("ui:run", args=[event.ref])),
    "failure": _Kind(
        lambda event: f"Run {event.ref} failed" + (f": {event.words}" if event.words else ""),
        lambda event: f"run failed: {event.cause}" if event.cause else "run failed",
        lambda event: reverse("ui:run", args=[event.ref]),
    ),
}


def read_events(job: Job, window: Window) -> tuple[Event, ...]:
    """The events of `job` in `window`, oldest first."""
    rows = event_rows(
        job.pk, window.begin, window.end, operations=_OPERATIONS, starting=_STARTING, failures=_FAILURES,
        not_failures=[str(reason) for reason in NOT_FAILURES], most=MAX_MARKS, newest=MAX_FAILURES,
    )  # fmt: skip
    return tuple(sorted((Event(*row) for row in rows), key=lambda event: (event.at, event.kind)))


def marks(events: Sequence[Event], window: Window) -> tuple[Mark, ...]:
    """The marks of events. A failed checkpoint has none: it is a bar of a plot."""
    return tuple(place_labels([_mark(event, window) for event in events if event.kind in _KINDS]))


def event_list(events: Sequence[Event], marked: Sequence[Mark]) -> tuple[Mark | ListedEvent, ...]:
    """The list of events, oldest first: marks, and failed checkpoints."""
    failed = [
        ListedEvent(event.at, event.failure, reverse("ui:checkpoint", args=[event.ref]))
        for event in events
        if event.kind == FAILED_CHECKPOINT
    ]
    return tuple(sorted((*marked, *failed), key=lambda each: each.time))


def _mark(event: Event, window: Window) -> Mark:
    kind = _KINDS[event.kind]
    label = Truncator(kind.label(event)).chars(_MAX_LABEL)
    return Mark(event.kind, window.percent(event.at), event.at, kind.about(event), label, kind.href(event))


def place_labels(marks: Sequence[Mark]) -> Iterator[Mark]:
    """The marks, in the same order, with the places of their labels. A label covers no other label and no mark.

    Labels of failures and restarts are placed first, and the newest before older ones.
    """
    beside = [(mark.at - _HALF_MARK, mark.at + _HALF_MARK) for mark in marks]
    below: list[_Extent] = []
    order = sorted(range(len(marks)), key=lambda at: (_LABEL_ORDER.index(marks[at].kind), -marks[at].at))
    places = {at: _free_place(marks[at], beside, below) for at in order[:_MAX_LABELS]}
    return (replace(mark, place=places.get(at)) for at, mark in enumerate(marks))


def _free_place(mark: Mark, beside: list[_Extent], below: list[_Extent]) -> LabelPlace | None:
    """The first free place of the label, which is then taken."""
    breadth = len(mark.label) * _LETTER
    for row in (beside, below) if mark.may_be_below else (beside,):
        for left in (mark.at + _HALF_MARK, mark.at - _HALF_MARK - breadth):
            right = left + breadth
            if left >= 0 and right <= 100 and not any(left < end and begin < right for begin, end in row):
                row.append((left, right))
                return LabelPlace(is_left=left < mark.at, is_below=row is below)
    return None
