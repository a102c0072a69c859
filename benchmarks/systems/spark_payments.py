"""R5 in Structured Streaming: `applyInPandasWithState`, and an Arrow function before a session window."""

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import LongType

from benchmarks import fraud
from benchmarks.fraud_columns import points, score

if TYPE_CHECKING:
    from benchmarks.systems.spark_inputs import SparkInputs

_COLUMNS: Final = ("card", "starts", "ends", "payments", "cents", "score")
_SCHEMA: Final = "card string, starts bigint, ends bigint, payments bigint, cents bigint, score bigint"


def read(inputs: "SparkInputs") -> DataFrame:
    return inputs.stream("payments", "event_time")


def sessions(inputs: "SparkInputs") -> DataFrame:
    rows = read(inputs).drop("payment_id")
    output = rows.groupBy("card").applyInPandasWithState(
        _sessions, _SCHEMA, "sessions string", "append", GroupStateTimeout.EventTimeTimeout
    )
    times = {name: f.timestamp_millis(name).cast("timestamp_ntz") for name in ("starts", "ends")}
    return output.withColumns(times)


def _sessions(key: tuple[str], batches: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Adds payments to the sessions of a card and ends sessions. Spark has dropped late rows."""
    sessions: list[fraud.Session] = json.loads(state.get[0]) if state.exists else []
    if not state.hasTimedOut:
        for batch in batches:
            times = batch["event_time"].to_numpy().astype("datetime64[ms]").astype("int64").tolist()
            columns = [batch[name].tolist() for name in fraud.COLUMNS]
            for at, *values in zip(times, *columns, strict=True):
                fraud.add(sessions, at, dict(zip(fraud.COLUMNS, values, strict=True)))
    watermark = state.getCurrentWatermarkMs()
    ended: list[tuple[Any, ...]] = []
    open_sessions: list[fraud.Session] = []
    for session in sessions:
        first, last, payments, cents, _, _ = session
        if (ends := last + fraud.GAP_MS) <= watermark:
            ended.append((key[0], first, ends, payments, cents, fraud.score(session)))
        else:
            open_sessions.append(session)
    if open_sessions:
        state.update((json.dumps(open_sessions),))
        state.setTimeoutTimestamp(min(session[1] for session in open_sessions) + fraud.GAP_MS)
    elif state.exists:
        state.remove()
    if ended:
        yield pd.DataFrame(ended, columns=list(_COLUMNS))


@arrow_udf(LongType())  # type: ignore[call-overload]
def _points(
    cents: pa.Array, country: pa.Array, home: pa.Array, channel: pa.Array, is_new: pa.Array, failures: pa.Array,
    merchant: pa.Array,
) -> pa.Array:  # fmt: skip
    return points(cents, country, home, channel, is_new, failures, merchant)


@arrow_udf(LongType())  # type: ignore[call-overload]
def _score(payments: pa.Array, cents: pa.Array, sum_of_points: pa.Array, largest: pa.Array) -> pa.Array:
    return score(payments, cents, sum_of_points, largest)


def arrow(inputs: "SparkInputs") -> DataFrame:
    rated = read(inputs).select("card", "event_time", "cents", _points(*fraud.COLUMNS).alias("points"))
    session = f.session_window("event_time", f"{fraud.GAP_MS} milliseconds").alias("session")
    totals = rated.groupBy("card", session).agg(
        f.count("*").alias("payments"),
        f.sum("cents").alias("cents"),
        f.sum("points").alias("points"),
        f.max("cents").alias("largest"),
    )
    starts, ends = (f.col(f"session.{name}").cast("timestamp_ntz") for name in ("start", "end"))
    return totals.select(
        "card", starts.alias("starts"), ends.alias("ends"), "payments", "cents",
        _score("payments", "cents", "points", "largest").alias("score"),
    )  # fmt: skip
