"""Monitor of the slots: their registration and progress, as a live report."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runtime.core.job.graph import JobGraph
from runtime.core.job.ids import OperatorId
from runtime.io.control.endpoints import Hello
from runtime.io.control.messages import Heartbeat, SubtaskMetrics, SubtaskStatus
from runtime.master.metrics_history import (
    Metrics,
    ProcessUsage,
    event_time,
    low_watermark,
    newest_watermark,
    watermark_lags,
)


class SlotMonitor:
    """Mutable, owned by the master's loop. Times are monotonic milliseconds."""

    def __init__(self, graph: JobGraph) -> None:
        self._graph = graph
        self._slots: dict[int, Hello] = {}
        self._last_seen: dict[int, float] = {}
        self._metrics: dict[OperatorId, dict[int, SubtaskMetrics]] = {}
        self._usage: dict[int, Heartbeat] = {}  #: per slot: the newest heartbeat
        self._previous_totals: tuple[float, dict[OperatorId, tuple[int, int, float, float]]] = (0.0, {})

    def on_hello(self, slot: int, hello: Hello, now: float) -> None:
        self._slots[slot] = hello
        self.on_message(slot, now)

    def on_message(self, slot: int, now: float, heartbeat: Heartbeat | None = None) -> None:
        self._last_seen[slot] = now
        if heartbeat is None:
            return
        self._usage[slot] = heartbeat
        for metrics in heartbeat.subtasks:
            self._metrics.setdefault(metrics.subtask.operator, {})[metrics.subtask.index] = metrics

    def memory_of(self, slot: int) -> int:
        """Resident memory of the slot's process in bytes, at its last heartbeat; 0: unknown."""
        usage = self._usage.get(slot)
        return usage.memory_bytes if usage else 0

    def log_of(self, slot: int) -> str:
        """File and host of the log of a slot; "" if it has none."""
        hello = self._slots.get(slot)
        return f"{hello.log} on {hello.host}" if hello and hello.log else ""

    def metrics(self) -> Metrics:
        """The newest metrics of the subtasks of each operator, by index."""
        return {uid: [by_index[index] for index in sorted(by_index)] for uid, by_index in self._metrics.items()}

    def processes(self) -> Mapping[object, ProcessUsage]:
        """The usage of each process with slots. Slots of a local run share a process."""
        return {
            (self._slots[slot].host, self._slots[slot].pid): ProcessUsage(usage.memory_bytes, usage.cpu_ms)
            for slot, usage in self._usage.items()
        }

    def report(self, now: float, now_ms: int) -> dict[str, Any]:
        """Operators, slots and counters; rates are per second since the previous report. `now_ms`: the wall clock."""
        then, before = self._previous_totals
        metrics = self.metrics()
        newest = newest_watermark(self._graph, metrics)
        totals = {o.uid: self._totals(metrics.get(o.uid, ())) for o in self._graph.operators}
        seconds = max((now - then) / 1000, 0.001)
        operators = {
            uid: self._operator_row(metrics.get(uid, ()), total, before.get(uid, total), seconds)
            | self._levels(metrics.get(uid, ()), newest, now_ms)
            for uid, total in totals.items()
        }
        self._previous_totals = (now, totals)
        counters = _sums(each.counters for by_index in self._metrics.values() for each in by_index.values())
        return {"operators": operators, "slots": self._slot_rows(now), "counters": counters}

    @staticmethod
    def _totals(subtasks: Sequence[SubtaskMetrics]) -> tuple[int, int, float, float]:
        return (
            sum(m.records_in for m in subtasks),
            sum(m.records_out for m in subtasks),
            sum(m.busy_ms for m in subtasks),
            sum(m.blocked_ms for m in subtasks),
        )

    @staticmethod
    def _levels(subtasks: Sequence[SubtaskMetrics], newest: int | None, now_ms: int) -> dict[str, Any]:
        """Watermark, its lags, and the bytes of an operator. `newest`: the newest watermark of a source."""
        watermark = low_watermark(subtasks)
        processing_lag_ms, event_lag_ms = watermark_lags(watermark, newest, now_ms)
        return {
            "watermark": watermark,
            "processing_lag_ms": processing_lag_ms,
            "event_lag_ms": event_lag_ms,
            "bytes_in": sum(m.bytes_in for m in subtasks),
            "bytes_out": sum(m.bytes_out for m in subtasks),
            "in_flight_bytes": sum(m.in_flight_bytes for m in subtasks),
            "counters": _sums(m.counters for m in subtasks),
            "open_results": _sums(m.open_results for m in subtasks),
        }

    @staticmethod
    def _operator_row(
        subtasks: Sequence[SubtaskMetrics],
        now: tuple[int, int, float, float],
        before: tuple[int, int, float, float],
        seconds: float,
    ) -> dict[str, Any]:
        states = {m.state for m in subtasks}
        state = next((state for state in SubtaskStatus if state in states), SubtaskStatus.DEPLOYING)
        capacity_ms = seconds * 1000 * max(len(subtasks), 1)
        return {
            "state": SubtaskStatus.FINISHED if state is SubtaskStatus.ENDED else state,
            "records_in": now[0],
            "records_out": now[1],
            "rate_in": round((now[0] - before[0]) / seconds, 1),
            "rate_out": round((now[1] - before[1]) / seconds, 1),
            "busy": round(min(1.0, max(0.0, (now[2] - before[2]) / capacity_ms)), 3),
            "backpressured": round(min(1.0, (now[3] - before[3]) / capacity_ms), 3),
            "subtasks": [
                {
                    "index": m.subtask.index,
                    "state": m.state,
                    "records_in": m.records_in,
                    "records_out": m.records_out,
                    "watermark": event_time(m.watermark),
                    "idle": m.is_idle,
                }
                for m in subtasks
            ],
        }

    def _slot_rows(self, now: float) -> list[dict[str, Any]]:
        return [
            {
                "index": slot,
                "pid": hello.pid,
                "host": hello.host,
                "address": hello.address,
                "executor": hello.executor,
                "log": hello.log,
                "memory_bytes": usage.memory_bytes if usage else None,
                "memory_bound_bytes": usage.memory_bound_bytes if usage else None,
                "cpu_ms": round(usage.cpu_ms) if usage else None,
                "seen_ms_ago": round(now - self._last_seen[slot]),
            }
            for slot, hello in sorted(self._slots.items())
            for usage in [self._usage.get(slot)]
        ]


def _sums(maps: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of the values of each name."""
    total: Counter[str] = Counter()
    for each in maps:
        total.update(each)
    return dict(total)
