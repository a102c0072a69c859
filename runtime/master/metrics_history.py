"""History of an attempt's numbers: an interval of about 5 s per row, for each operator and for the run as a whole.

Counters of slots begin at zero with each attempt. An interval holds their *increase*, so rates stay right across
restarts, and a coarser interval is the sum of finer intervals. Flows (records, bytes, processor time) and fractions of
time cover the whole interval. Levels (lag, memory, bytes in flight) are the highest sample in it.

The run as a whole has the operator name "". Its input is the output of the sources, and its output the input of the
sinks. Its busy and backpressured fractions are those of the most affected operator, not a mean.

An interval ends with the first sample in the next 5 s of the wall clock. It waits here until the database has it.
"""

import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from runtime.core.checkpoint.acknowledgements import PHASES
from runtime.core.job.graph import JobGraph, OperatorSpec, Role
from runtime.core.job.ids import OperatorId, SubtaskId
from runtime.core.job.messages import MAX_WATERMARK, MIN_WATERMARK
from runtime.core.snapshot.manifest import Manifest, SnapshotTimings
from runtime.io.control.messages import SubtaskMetrics
from runtime.run_store import MetricsInterval

INTERVAL_MS: Final = 5_000
MAX_PENDING: Final = 120  #: ended intervals that wait for the database (10 min); later the oldest is dropped
WHOLE_RUN: Final = OperatorId("")

Metrics = Mapping[OperatorId, Sequence[SubtaskMetrics]]  #: per operator, by index of the subtask


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """Usage of a process with slots: resident bytes, and processor time since the process began."""

    memory_bytes: int
    cpu_ms: float


@dataclass(slots=True)
class _Peaks:
    """The highest samples of an operator in an interval. None: no sample had a value."""

    processing_lag_ms: int | None = None
    event_lag_ms: int | None = None
    in_flight_bytes: int = 0


@dataclass(slots=True)
class _Checkpoints:
    """The checkpoints that ended in an interval."""

    completed: int = 0
    failed: int = 0
    duration_ms: int | None = None  #: of the longest checkpoint; `commit_ms`: of the same
    commit_ms: int | None = None
    written_bytes: int = 0
    phases: dict[str, dict[str, float]] = field(default_factory=dict)  #: by operator: the longest of each phase
    slowest_phases: dict[str, float] = field(default_factory=dict)  #: of the slowest subtask in the longest checkpoint


class MetricsHistory:
    """Owned by the master's loop, but `pending` and `on_written` may be called from any thread. Times are in ms."""

    def __init__(self, graph: JobGraph, now_ms: int) -> None:
        """The first interval begins at the wall-clock time `now_ms`."""
        self._graph, self._began_at = graph, now_ms
        self._base: dict[SubtaskId, SubtaskMetrics] = {}
        self._cpu_base: dict[object, float] = {}
        self._memory_bytes = 0
        self._peaks: dict[str, _Peaks] = {}
        self._checkpoints = _Checkpoints()
        self._ended_checkpoints = {"completed": 0, "failed": 0}  #: since the attempt began
        self._newest_checkpoint: dict[str, Any] = {}
        self._state_bytes: dict[str, int] = {}
        self._pending: deque[MetricsInterval] = deque(maxlen=MAX_PENDING)
        self._lock = threading.Lock()

    # ------------------------------------------------------------ samples

    def on_checkpoint(
        self,
        manifest: Manifest,
        timings: Sequence[tuple[SubtaskId, SnapshotTimings]],
        duration_ms: int,
        commit_ms: int,
    ) -> None:
        """A checkpoint was recorded, `duration_ms` after its trigger and `commit_ms` after its last acknowledgement."""
        checkpoints = self._checkpoints
        checkpoints.completed += 1
        if checkpoints.duration_ms is None or duration_ms > checkpoints.duration_ms:
            checkpoints.duration_ms, checkpoints.commit_ms = duration_ms, commit_ms
            checkpoints.slowest_phases = max((_phases(timing) for _, timing in timings), key=_total, default={})
        for subtask, timing in timings:
            checkpoints.written_bytes += timing.written_bytes
            longest = checkpoints.phases.setdefault(subtask.operator, {})
            for name, ms in _phases(timing).items():
                longest[name] = max(longest.get(name, 0.0), ms)
        self._state_bytes = {
            uid: sum(segment.nbytes for subtask in operator.subtasks.values() for segment in subtask.segments())
            for uid, operator in manifest.operators.items()
        }
        self._ended_checkpoints["completed"] += 1
        self._newest_checkpoint = {
            "duration_ms": duration_ms,
            "written_bytes": sum(timing.written_bytes for _, timing in timings),
            "phases": {phase: max((getattr(t, f"{phase}_ms") for _, t in timings), default=0.0) for phase in PHASES},
        }

    def on_failed_checkpoint(self) -> None:
        self._checkpoints.failed += 1
        self._ended_checkpoints["failed"] += 1

    @property
    def checkpoint_facts(self) -> Mapping[str, Any]:
        """Entries of a live report: checkpoints since the attempt began, the newest of them, state by operator."""
        return {
            "checkpoints": {**self._ended_checkpoints, **self._newest_checkpoint},
            "state_bytes": dict(self._state_bytes),
        }

    def sample(self, metrics: Metrics, processes: Mapping[object, ProcessUsage], now_ms: int) -> None:
        """Takes a sample, about once a second. Ends the interval if `now_ms` lies in a later one.

        `now_ms` is the wall clock. If it is set back, the interval begins then.
        """
        self._began_at = min(self._began_at, now_ms)
        newest = newest_watermark(self._graph, metrics)
        for operator in self._graph.operators:
            peaks, subtasks = self._peaks.setdefault(operator.uid, _Peaks()), metrics.get(operator.uid, ())
            lags = watermark_lags(low_watermark(subtasks), newest, now_ms)
            peaks.processing_lag_ms = _highest([peaks.processing_lag_ms, lags[0]])
            peaks.event_lag_ms = _highest([peaks.event_lag_ms, lags[1]])
            peaks.in_flight_bytes = max(peaks.in_flight_bytes, sum(m.in_flight_bytes for m in subtasks))
        self._memory_bytes = max(self._memory_bytes, sum(usage.memory_bytes for usage in processes.values()))
        for process, usage in processes.items():
            self._cpu_base.setdefault(process, usage.cpu_ms)
        if now_ms // INTERVAL_MS > self._began_at // INTERVAL_MS:
            self._end_interval(metrics, processes, now_ms)

    def end(self, metrics: Metrics, processes: Mapping[object, ProcessUsage], now_ms: int) -> None:
        """Ends the attempt, with an interval that may be shorter than the others."""
        self.sample(metrics, processes, now_ms)
        if metrics and now_ms > self._began_at:
            self._end_interval(metrics, processes, now_ms)

    # ------------------------------------------------------------ to the database

    def pending(self) -> tuple[MetricsInterval, ...]:
        """The ended intervals that the database does not have."""
        with self._lock:
            return tuple(self._pending)

    def on_written(self, intervals: Sequence[MetricsInterval]) -> None:
        """The database has `intervals`."""
        with self._lock:
            for interval in intervals:
                if self._pending and self._pending[0] is interval:
                    self._pending.popleft()

    # ------------------------------------------------------------ an interval

    def _end_interval(self, metrics: Metrics, processes: Mapping[object, ProcessUsage], now_ms: int) -> None:
        span_ms = now_ms - self._began_at
        rows = [self._operator_row(operator, metrics, span_ms) for operator in self._graph.operators]
        rows.append(self._run_row(rows, processes))
        interval = MetricsInterval(
            at=self._began_at // INTERVAL_MS * INTERVAL_MS,
            rows=[{"span_ms": span_ms, **row} for row in rows],
            subtasks={uid: self._subtask_columns(subtasks, span_ms) for uid, subtasks in metrics.items()},
        )
        with self._lock:
            self._pending.append(interval)
        self._began_at, self._base = now_ms, {m.subtask: m for subtasks in metrics.values() for m in subtasks}
        self._cpu_base = {process: usage.cpu_ms for process, usage in processes.items()}
        self._memory_bytes, self._peaks, self._checkpoints = 0, {}, _Checkpoints()

    def _operator_row(self, operator: OperatorSpec, metrics: Metrics, span_ms: int) -> dict[str, Any]:
        subtasks, peaks = metrics.get(operator.uid, ()), self._peaks[operator.uid]
        rows = [self._increase(m, "records_out" if operator.role is Role.SOURCE else "records_in") for m in subtasks]
        return {
            "operator": operator.uid,
            **{
                name: sum(self._increase(m, name) for m in subtasks)
                for name in ("records_in", "records_out", "bytes_in", "bytes_out")
            },
            "busy": fraction(sum(self._increase(m, "busy_ms") for m in subtasks), span_ms * len(subtasks)),
            "backpressured": fraction(sum(self._increase(m, "blocked_ms") for m in subtasks), span_ms * len(subtasks)),
            "skew": skew(rows),
            "watermark": low_watermark(subtasks),
            "processing_lag_ms": peaks.processing_lag_ms,
            "event_lag_ms": peaks.event_lag_ms,
            "in_flight_bytes": peaks.in_flight_bytes,
            "state_bytes": self._state_bytes.get(operator.uid),
            **self._checkpoints.phases.get(operator.uid, {}),
        }

    def _run_row(self, rows: Sequence[Mapping[str, Any]], processes: Mapping[object, ProcessUsage]) -> dict[str, Any]:
        by_role = {
            role: [row for row in rows if self._graph.by_uid[row["operator"]].role is role]
            for role in (Role.SOURCE, Role.SINK)
        }
        highest = ("busy", "backpressured", "skew", "processing_lag_ms", "event_lag_ms")
        watermarks = [row["watermark"] for row in rows if row["watermark"] is not None]
        cpu = (usage.cpu_ms - self._cpu_base[process] for process, usage in processes.items())
        ended = self._checkpoints
        return {
            "operator": WHOLE_RUN,
            "records_in": sum(row["records_out"] for row in by_role[Role.SOURCE]),
            "records_out": sum(row["records_in"] for row in by_role[Role.SINK]),
            "bytes_in": sum(row["bytes_out"] for row in by_role[Role.SOURCE]),
            "bytes_out": sum(row["bytes_in"] for row in by_role[Role.SINK]),
            **{name: _highest(row.get(name) for row in rows) for name in highest},
            "watermark": min(watermarks, default=None),
            "in_flight_bytes": sum(row["in_flight_bytes"] for row in rows),
            "state_bytes": sum(self._state_bytes.values()) if self._state_bytes else None,
            "checkpoints": ended.completed,
            "checkpoints_failed": ended.failed,
            "checkpoint_ms": ended.duration_ms,
            "commit_ms": ended.commit_ms,
            "checkpoint_bytes": ended.written_bytes,
            **ended.slowest_phases,
            "cpu_ms": round(sum(cpu)),
            "memory_bytes": self._memory_bytes,
        }

    def _subtask_columns(self, subtasks: Sequence[SubtaskMetrics], span_ms: int) -> dict[str, list[Any]]:
        """A list per number, with an entry per subtask in the order of `index`."""
        return {
            "index": [m.subtask.index for m in subtasks],
            "records_in": [self._increase(m, "records_in") for m in subtasks],
            "records_out": [self._increase(m, "records_out") for m in subtasks],
            "busy": [fraction(self._increase(m, "busy_ms"), span_ms) for m in subtasks],
            "backpressured": [fraction(self._increase(m, "blocked_ms"), span_ms) for m in subtasks],
            "watermark": [event_time(m.watermark) for m in subtasks],
            "in_flight_bytes": [m.in_flight_bytes for m in subtasks],
        }

    def _increase(self, metrics: SubtaskMetrics, name: str) -> Any:
        """Increase of a counter within the interval; counters begin at 0 with the attempt."""
        base = self._base.get(metrics.subtask)
        total = getattr(metrics, name)
        return total if base is None else total - getattr(base, name)


# ---------------------------------------------------------------- numbers of an operator, from those of its subtasks


def event_time(watermark: int) -> int | None:
    """The watermark as a time; None before the first watermark and at the end of the input."""
    return None if watermark in (MIN_WATERMARK, MAX_WATERMARK) else watermark


def low_watermark(subtasks: Sequence[SubtaskMetrics]) -> int | None:
    """The lowest watermark of the subtasks; None unless each of them has one."""
    times = [event_time(m.watermark) for m in subtasks]
    return min((time for time in times if time is not None), default=None) if None not in times else None


def newest_watermark(graph: JobGraph, metrics: Metrics) -> int | None:
    """The highest watermark of any source subtask: the newest event time that the run has read, minus the disorder that
    its source allows.
    """
    sources = [operator.uid for operator in graph.operators if operator.role is Role.SOURCE]
    times = (event_time(m.watermark) for uid in sources for m in metrics.get(uid, ()))
    return max((time for time in times if time is not None), default=None)


def watermark_lags(watermark: int | None, newest: int | None, now_ms: int) -> tuple[int | None, int | None]:
    """How far `watermark` is behind the wall clock, and behind `newest`, the newest watermark of a source."""
    if watermark is None:
        return None, None
    return now_ms - watermark, None if newest is None else max(0, newest - watermark)


def skew(records: Sequence[int]) -> float | None:
    """The records of the busiest subtask, divided by the mean: 1 is even. None for one subtask, or without records."""
    total = sum(records)
    return round(max(records) * len(records) / total, 3) if total > 0 and len(records) > 1 else None


def fraction(part_ms: float, whole_ms: float) -> float:
    """A fraction of time between 0 and 1. Heartbeats and samples differ by up to half a second, hence the bounds."""
    return round(min(1.0, max(0.0, part_ms / whole_ms)), 3) if whole_ms > 0 else 0.0


def _phases(timings: SnapshotTimings) -> dict[str, float]:
    """Columns of a row."""
    return {f"{phase}_ms": round(getattr(timings, f"{phase}_ms"), 1) for phase in PHASES}


def _total(phases: Mapping[str, float]) -> float:
    return sum(phases.values())


def _highest(values: Iterable[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)
