"""R5 in Weir: a row-wise function with keyed state and timers; an Arrow function before a session window."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

import weir
from benchmarks import fraud
from benchmarks.fraud_columns import points, score

if TYPE_CHECKING:
    from benchmarks.systems.weir_inputs import WeirInputs

_MS: Final = pa.timestamp("ms")
_COLUMNS: Final = ("card", "starts", "ends", "payments", "cents", "score")
_SCHEMA: Final = pa.schema(
    [
        ("card", pa.string()),
        ("starts", _MS),
        ("ends", _MS),
        ("payments", pa.int64()),
        ("cents", pa.int64()),
        ("score", pa.int64()),
    ]
)


class Sessions(weir.KeyedProcessFunction):
    """Emits the sessions of a card when the watermark has reached their end. A session has a timer for that time."""

    def open(self, context: weir.ProcessContext) -> None:
        self.sessions = context.value_state("sessions")

    def process(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        at = context.timestamp
        assert at is not None, "each payment has a time"
        if context.watermark is not None and at + fraud.GAP_MS <= context.watermark:
            context.count("late_records")
            return
        sessions = self.sessions.get() or []
        before = len(sessions)
        session = fraud.add(sessions, at, row)
        if len(sessions) > before:
            context.register_event_timer(session[1] + fraud.GAP_MS)
        self.sessions.update(sessions)

    def on_timer(self, timestamp_ms: int, context: weir.ProcessContext, out: weir.RowCollector) -> None:
        open_sessions = []
        for session in self.sessions.get() or []:
            first, last, payments, cents, _, _ = session
            ends = last + fraud.GAP_MS
            if ends > timestamp_ms:
                open_sessions.append(session)
                context.register_event_timer(ends)
                continue
            values = (context.current_key, first, ends, payments, cents, fraud.score(session))
            out.emit(dict(zip(_COLUMNS, values, strict=True)))
        if open_sessions:
            self.sessions.update(open_sessions)
        else:
            self.sessions.clear()


def read(inputs: "WeirInputs", max_drift: timedelta | None = None) -> weir.Stream:
    return inputs.table("payments", "event_time", max_drift=max_drift)


def sessions(inputs: "WeirInputs") -> weir.Stream:
    return (
        read(inputs, timedelta(milliseconds=fraud.GAP_MS))
        .key_by("card")
        .process("sessions", Sessions, _SCHEMA, time="event_time")
    )


def arrow(inputs: "WeirInputs") -> weir.Stream:
    aggregates = {
        "payments": weir.Count(),
        "cents": weir.Sum("cents"),
        "points": weir.Sum("points"),
        "largest": weir.Max("cents"),
    }
    rated = read(inputs).map_batches("points", _with_points)
    gap = timedelta(milliseconds=fraud.GAP_MS)
    return rated.key_by("card").session_window("sessions", gap, "event_time", aggregates).map_batches("score", _scored)


def _with_points(batch: pa.RecordBatch) -> pa.RecordBatch:
    rated = batch.select(["card", "event_time", "cents"])
    return rated.append_column("points", points(*(batch[name] for name in fraud.COLUMNS)))


def _scored(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = {
        "card": batch["card"],
        "starts": batch["window_start"],
        "ends": batch["window_end"],
        "payments": batch["payments"],
        "cents": batch["cents"],
        "score": score(batch["payments"], batch["cents"], batch["points"], batch["largest"]),
    }
    return pa.RecordBatch.from_pydict(values)
