"""All subtasks of an operator: numbers of the newest interval, state and acknowledgement of the newest checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from console import formats
from console.checkpoints.lanes import Lane, lanes_of
from console.checkpoints.models import Checkpoint, Status
from console.formats import Quantity
from console.jobs.models import Run
from console.metrics.models import FINEST_STEP_S
from console.metrics.selectors import subtask_history
from console.ui.inspector import rate_column, skew_label
from console.ui.tables.runs import SUBTASKS

SUBTASKS_PER_PAGE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskRow:
    """A subtask. `share` is its rate by the mean of all subtasks; `acknowledged_ms` counts from the trigger.

    `is_awaited`: the newest checkpoint has no acknowledgement of this subtask.
    """

    index: int
    rate_per_s: float
    share: float
    busy: float
    backpressured: float
    watermark: Quantity
    state_bytes: int | None
    acknowledged_ms: int | None
    is_awaited: bool

    @property
    def skew(self) -> str:
        return skew_label(self.share)


DEFAULT_ORDER: Final = "-skew"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtaskPage:
    """A page of the subtasks in an order. `at`: begin of the newest interval; None: no numbers in the last hour."""

    at: datetime | None
    sort: str
    rows: tuple[SubtaskRow, ...]
    total: int
    first: int  #: place of the first row
    acknowledged: Checkpoint | None  #: of the acknowledgements
    completed: Checkpoint | None  #: of the sizes of state

    @property
    def is_first(self) -> bool:
        return not self.first

    @property
    def last(self) -> int:
        return self.first + len(self.rows)

    @property
    def following(self) -> int | None:
        """The place of the first row of the next page."""
        return self.last if self.last < self.total else None


def subtask_page(run: Run, operator: Mapping[str, Any], sort: str, first: int, now: datetime) -> SubtaskPage:
    """The rows after the first `first` in the order `sort`; a leading "-" puts the highest first. Three queries."""
    uid = operator["uid"]
    newest = Checkpoint.objects.filter(run=run).only("number", "kind", "status", "acknowledgements").order_by("-number")
    acknowledged = newest.first()
    is_complete = acknowledged is None or acknowledged.status == Status.COMPLETED
    completed = acknowledged if is_complete else newest.filter(status=Status.COMPLETED).first()
    at, rows = _rows(run, uid, rate_column(operator), _lanes(acknowledged, uid), _lanes(completed, uid), now)
    sort = sort if SUBTASKS.order_of(sort) else DEFAULT_ORDER
    order, sign = SUBTASKS.order_of(sort), -1 if sort.startswith("-") else 1

    def place(row: SubtaskRow) -> tuple[bool, float, int]:
        value = order(row) if order else None
        return value is None, sign * (value or 0.0), row.index

    page = tuple(sorted(rows, key=place)[first : first + SUBTASKS_PER_PAGE])
    return SubtaskPage(
        at=at, sort=sort, rows=page, total=len(rows), first=first, acknowledged=acknowledged, completed=completed
    )


def _lanes(checkpoint: Checkpoint | None, uid: str) -> Mapping[int, Lane]:
    record = checkpoint.acknowledgements.get(uid) if checkpoint else None
    return {lane.index: lane for lane in lanes_of({uid: record}, (uid,))} if record else {}


def _rows(
    run: Run, uid: str, rate: str, acknowledged: Mapping[int, Lane], completed: Mapping[int, Lane], now: datetime
) -> tuple[datetime | None, list[SubtaskRow]]:
    history = subtask_history(run, uid, now, intervals=1)
    if not history.at:
        return None, []
    newest = {name: values[-1] for name, values in history.numbers.items()}
    mean = sum(newest[rate]) / len(newest[rate])
    rows = []
    for place, index in enumerate(history.index[-1]):
        lane, stored, records = acknowledged.get(index), completed.get(index), newest[rate][place]
        rows.append(
            SubtaskRow(
                index=index,
                rate_per_s=records / FINEST_STEP_S,
                share=records / mean if mean else 1.0,
                busy=newest["busy"][place],
                backpressured=newest["backpressured"][place],
                watermark=formats.watermark(newest["watermark"][place], history.until),
                state_bytes=stored.state_bytes if stored else None,
                acknowledged_ms=lane.at_ms if lane else None,
                is_awaited=lane is not None and lane.at_ms is None,
            )
        )
    return history.at[-1], rows
