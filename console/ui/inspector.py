"""The panel beside the job graph, or below a wide graph: the chosen operator, or the job.

Its parts are read when a template asks for them. `key` names the content of the table of subtasks without reading it,
as for the plots.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from hashlib import blake2s
from typing import Any, Final

from console import formats
from console.accounts.refusals import Refused
from console.checkpoints.models import Checkpoint
from console.checkpoints.selectors import newest_kept
from console.checkpoints.timed_reads import recorded_states_in_time
from console.formats import Quantity
from console.jobs.failures import MAX_CAUSES, FailureCause, failure_causes
from console.metrics.live import OperatorLive
from console.metrics.models import FINEST_STEP_S
from console.metrics.selectors import SubtaskHistory, subtask_history
from console.runs.logs import LogLine, LogSecrets, log_file, log_size, recent_warnings
from console.ui.job_page import JobView
from console.ui.plots import shapes
from runtime.core.snapshot.contents import StoredState

REFRESH_S: Final = 10
SHOWN_SUBTASKS: Final = 16  #: the most skewed; `console.ui.lists.subtask_page` has all
SHOWN_STATES: Final = 14  #: the largest; the page of a checkpoint has all
SPARK_POINTS: Final = 60  #: of the last hour
_METER: Final = 72.0  #: width of a meter in pixels


@dataclass(frozen=True, slots=True)
class SubtaskLine:
    """A subtask with the numbers of its newest interval; `spark` is its rate over the last hour, on a scale of all
    subtasks.
    """

    index: int
    rate: Quantity
    share: float  #: of the mean rate of all subtasks
    busy: Quantity
    backpressured: Quantity
    watermark: Quantity
    spark: str
    spark_box: str

    @property
    def skew(self) -> str:
        return skew_label(self.share)


@dataclass(frozen=True, slots=True)
class StateLine:
    """A state of the chosen operator, or all state of an operator. `meter` is its share of the largest, in pixels."""

    name: str
    kind: str
    nbytes: int
    rows: int | None
    meter: float


class Inspector:
    def __init__(self, view: JobView, node: str, now: datetime) -> None:
        """`node`: uid of the chosen operator, '' for the job. A uid that the graph does not have counts as ''."""
        page, live = view.page, view.live
        self._page, self._newest, self._now = page, view.newest_restorable, now
        operators = (page.version.graph or {}).get("operators", ()) if page.version else ()
        self._names: Mapping[str, str] = {o["uid"]: o["name"] for o in operators}
        self._spec: Mapping[str, Any] = next((o for o in operators if o["uid"] == node), {})
        self.uid: str = self._spec.get("uid", "")
        self.name: str = self._spec.get("name", "")
        self.numbers: OperatorLive | None = live.operators.get(self.uid)

    @property
    def key(self) -> str:
        run = self._page.run
        newest = [(row.pk, row.outcome) for row in self._page.attempts[:1]]
        moving = int(self._now.timestamp()) // REFRESH_S if run and not run.is_terminal else 0
        facts = (self.uid, run and (run.pk, run.state), newest, moving)
        return blake2s(repr(facts).encode(), digest_size=8).hexdigest()

    @property
    def counters(self) -> Mapping[str, int]:
        """Counters of the chosen operator, such as late and dropped records."""
        return self.numbers.counters if self.numbers else {}

    @cached_property
    def subtasks(self) -> tuple[SubtaskLine, ...]:
        """The subtasks of the chosen operator, the most skewed first. A query."""
        if not self.uid or self._page.run is None:
            return ()
        history = subtask_history(self._page.run, self.uid, self._now)
        return subtask_lines(history, rate_column(self._spec))

    @property
    def shown_subtasks(self) -> Sequence[SubtaskLine]:
        return self.subtasks[:SHOWN_SUBTASKS]

    @cached_property
    def _causes(self) -> tuple[FailureCause, ...]:
        """The causes, one more than the page shows: then the page can say that there are more."""
        return failure_causes(self._page.job, self._page.schema, self.uid, MAX_CAUSES + 1)

    @property
    def failures(self) -> tuple[FailureCause, ...]:
        return self._causes[:MAX_CAUSES]

    @property
    def has_more_failures(self) -> bool:
        return len(self._causes) > MAX_CAUSES

    @property
    def log_key(self) -> str:
        """Names the content of `warnings`."""
        run = self._page.run
        return f"{run.pk}_{log_size(log_file(run))}" if run else "0"

    @property
    def warnings(self) -> Sequence[LogLine] | None:
        """The last warnings in the log of the job master; None if this host does not have the log."""
        run, page = self._page.run, self._page
        if run is None:
            return ()
        schema = run.version.parameter_schema(page.schema)
        return recent_warnings(run, LogSecrets(run.job.pipeline, run.version.params, schema))

    @cached_property
    def checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint whose state can be read."""
        return self._newest or newest_kept(self._page.job).first()

    @cached_property
    def states(self) -> tuple[StateLine, ...]:
        """States of the chosen operator by name, or of all operators by size; largest first."""
        if self.checkpoint is None:
            return ()
        if not self.uid:
            sizes = {row["uid"]: row.get("state_bytes") or 0 for row in self.checkpoint.operators}
            return _with_meters(
                [StateLine(self._names.get(uid, uid), "", size, None, 0.0) for uid, size in sizes.items() if size]
            )
        states = [state for state in self._recorded_states[0] if state.operator == self.uid]
        return _with_meters([StateLine(s.name, s.kind.value, s.nbytes, s.rows, 0.0) for s in states])

    @property
    def shown_states(self) -> Sequence[StateLine]:
        return self.states[:SHOWN_STATES]

    @property
    def states_fault(self) -> str:
        """Why the states of the chosen operator cannot be read, as a sentence; "" if they can."""
        return self._recorded_states[1] if self.uid else ""

    @property
    def more_states(self) -> int:
        """States that are not larger than those shown."""
        return max(0, len(self.states) - SHOWN_STATES)

    @cached_property
    def _recorded_states(self) -> tuple[tuple[StoredState, ...], str]:
        """The states of all operators and an empty text, or no states and the reason."""
        try:
            return (recorded_states_in_time(self.checkpoint) if self.checkpoint else ()), ""
        except Refused as refused:
            return (), refused.detail


def rate_column(operator: Mapping[str, Any]) -> str:
    """The number that is the rate of an operator of the graph."""
    return "records_out" if operator.get("role") == "source" else "records_in"


def skew_label(share: float) -> str:
    """How far a rate is from the mean of all subtasks, if it is far; else ''."""
    return "" if 0.5 <= share <= 1.5 else f"{share:.1f} × mean"


def subtask_lines(history: SubtaskHistory, rate: str) -> tuple[SubtaskLine, ...]:
    """A line per subtask of the newest interval, those farthest from the mean rate first."""
    if not history.at:
        return ()
    newest = {name: values[-1] for name, values in history.numbers.items()}
    mean = sum(newest[rate]) / len(newest[rate])
    means = {index: _means(history, rate, index) for index in history.index[-1]}
    largest = max((value for values in means.values() for value in values if value is not None), default=0.0) or 1.0
    lines = [
        SubtaskLine(
            index=index,
            rate=formats.rate(newest[rate][at] / FINEST_STEP_S),
            share=newest[rate][at] / mean if mean else 1.0,
            busy=formats.percent(newest["busy"][at]),
            backpressured=formats.percent(newest["backpressured"][at]),
            watermark=formats.watermark(newest["watermark"][at], history.until),
            spark=shapes.line(means[index], largest),
            spark_box=f"0 0 {len(means[index])} {shapes.HEIGHT}",
        )
        for at, index in enumerate(history.index[-1])
    ]
    return tuple(sorted(lines, key=lambda line: (-abs(line.share - 1), -line.share, line.index)))


def _means(history: SubtaskHistory, rate: str, index: int) -> list[float | None]:
    """The records of a subtask, in at most `SPARK_POINTS` intervals."""
    size = -(-len(history.at) // SPARK_POINTS)
    values = [
        row[indexes.index(index)] if index in indexes else None
        for indexes, row in zip(history.index, history.numbers[rate], strict=True)
    ]
    means: list[float | None] = []
    for first in range(0, len(values), size):
        numbers = [value for value in values[first : first + size] if value is not None]
        means.append(sum(numbers) / len(numbers) if numbers else None)
    return means


def _with_meters(lines: Sequence[StateLine]) -> tuple[StateLine, ...]:
    largest = max((line.nbytes for line in lines), default=0) or 1
    ordered = sorted(lines, key=lambda line: (-line.nbytes, line.name))
    return tuple(
        StateLine(line.name, line.kind, line.nbytes, line.rows, round(line.nbytes / largest * _METER, 1))
        for line in ordered
    )
