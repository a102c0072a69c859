"""Monitor of the slots: their registration, liveness and progress, as a live report.

Its only decision is that a slot has been silent for too long. Silence is accumulated over checks in quick succession,
as for the heartbeat of a master. A suspended master reads no mail, so its suspension does not count as silence.
"""

from collections.abc import Mapping
from typing import Any, Final

from runtime.core.job.graph import JobGraph
from runtime.core.job.messages import MAX_WATERMARK, MIN_WATERMARK
from runtime.io.control.endpoints import Hello
from runtime.io.control.messages import Heartbeat, SubtaskMetrics, SubtaskStatus

MAX_CHECK_INTERVAL_MS: Final = 1_000  #: checks lie further apart only if the master was suspended


class SlotMonitor:
    """Mutable, owned by the master's loop. Times are monotonic milliseconds."""

    def __init__(self, graph: JobGraph) -> None:
        self._graph = graph
        self._slots: dict[int, Hello] = {}
        self._last_seen: dict[int, float] = {}
        self._silence_ms: dict[int, float] = {}
        self._checked_at: float | None = None
        self._metrics: dict[tuple[str, int], SubtaskMetrics] = {}
        self._memory: dict[int, tuple[int, int | None]] = {}  #: per slot: bytes in use, and their bound
        self._previous_totals: tuple[float, dict[str, tuple[int, int, float, float]]] = (0.0, {})

    def on_hello(self, slot: int, hello: Hello, now: float) -> None:
        self._slots[slot] = hello
        self.on_message(slot, now)

    def on_message(self, slot: int, now: float, heartbeat: Heartbeat | None = None) -> None:
        self._last_seen[slot] = now
        self._silence_ms[slot] = 0.0
        if heartbeat is None:
            return
        self._memory[slot] = heartbeat.memory_bytes, heartbeat.memory_bound_bytes
        for metrics in heartbeat.subtasks:
            self._metrics[metrics.subtask.operator, metrics.subtask.index] = metrics

    def silent_slot(self, now: float, timeout_ms: float) -> int | None:
        """A slot without messages for `timeout_ms`, or None. Call it in every turn of the loop, after the mail."""
        passed_ms = 0.0 if self._checked_at is None else min(now - self._checked_at, MAX_CHECK_INTERVAL_MS)
        self._checked_at = now
        for slot in self._silence_ms:
            self._silence_ms[slot] += passed_ms
        return next((slot for slot, silence_ms in self._silence_ms.items() if silence_ms > timeout_ms), None)

    def report(self, now: float) -> dict[str, Any]:
        """Operators, slots and counters; rates are per second since the previous report."""
        then, before = self._previous_totals
        totals = {o.uid: self._totals(o.uid) for o in self._graph.operators}
        seconds = max((now - then) / 1000, 0.001)
        operators = {uid: self._operator_row(uid, totals[uid], before.get(uid, totals[uid]), seconds) for uid in totals}
        self._previous_totals = (now, {str(uid): total for uid, total in totals.items()})
        return {"operators": operators, "slots": self._slot_rows(now), "counters": self._counters()}

    def _metrics_of(self, uid: str) -> list[SubtaskMetrics]:
        return [metrics for (operator, _), metrics in sorted(self._metrics.items()) if operator == uid]

    def _totals(self, uid: str) -> tuple[int, int, float, float]:
        own = self._metrics_of(uid)
        return (
            sum(m.records_in for m in own),
            sum(m.records_out for m in own),
            sum(m.busy_ms for m in own),
            sum(m.blocked_ms for m in own),
        )

    def _operator_row(
        self, uid: str, now: tuple[int, int, float, float], before: tuple[int, int, float, float], seconds: float
    ) -> Mapping[str, Any]:
        own = self._metrics_of(uid)
        found = {m.state for m in own}
        state = next((state for state in SubtaskStatus if state in found), SubtaskStatus.DEPLOYING)
        capacity_ms = seconds * 1000 * max(len(own), 1)
        watermarks = [w for m in own if (w := _event_time(m.watermark)) is not None]
        return {
            "state": SubtaskStatus.FINISHED if state is SubtaskStatus.ENDED else state,
            "records_in": now[0],
            "records_out": now[1],
            "rate_in": round((now[0] - before[0]) / seconds, 1),
            "rate_out": round((now[1] - before[1]) / seconds, 1),
            "watermark": min(watermarks) if watermarks and len(watermarks) == len(own) else None,
            "busy": round(min(1.0, max(0.0, (now[2] - before[2]) / capacity_ms)), 3),
            "backpressured": round(min(1.0, (now[3] - before[3]) / capacity_ms), 3),
            "subtasks": [
                {
                    "index": m.subtask.index,
                    "state": m.state,
                    "records_in": m.records_in,
                    "records_out": m.records_out,
                    "watermark": _event_time(m.watermark),
                }
                for m in own
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
                "memory_bytes": memory,
                "memory_bound_bytes": bound,
                "seen_ms_ago": round(now - self._last_seen[slot]),
            }
            for slot, hello in sorted(self._slots.items())
            for memory, bound in [self._memory.get(slot, (None, None))]
        ]

    def _counters(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for metrics in self._metrics.values():
            for name, amount in metrics.counters.items():
                total[name] = total.get(name, 0) + amount
        return total


def _event_time(watermark: int) -> int | None:
    return None if watermark in (MIN_WATERMARK, MAX_WATERMARK) else watermark
