"""A job with every kind of keyed state that can be bootstrapped, over visits of users to pages."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import weir
from tests.jobs.numbers import committed

VISITS = pa.schema([("id", pa.int64()), ("user", pa.string()), ("page", pa.int32()), ("at", pa.timestamp("us"))])
SEEN = pa.schema([("id", pa.int64()), ("user", pa.string()), ("last", pa.int64()), ("recent", pa.list_(pa.int64())),
                  ("pages", pa.int64()), ("timer", pa.int64())])  # fmt: skip
USERS = 23
RECENT = 3


def visits(first: int, last: int) -> pa.Table:
    """Visits `first` to before `last`: a second apart."""
    ids = pa.array(range(first, last), pa.int64())
    users = pa.array([f"user-{(number * 7) % USERS}" for number in range(first, last)])
    pages = pa.array([number % 5 for number in range(first, last)], pa.int32())
    at = pc.multiply(ids, 1_000_000).cast(pa.timestamp("us"))
    return pa.table([ids, users, pages, at], schema=VISITS)


class Seen(weir.KeyedProcessFunction):
    """The visit before, the last three, how many pages there were; a timer an hour after each tenth visit."""

    def open(self, context: weir.ProcessContext) -> None:
        self.last = context.value_state("last")
        self.recent = context.list_state("recent")
        self.pages = context.map_state("pages", ttl_ms=10 * 86_400_000)

    def process(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        self.remember(row, context)
        out.emit({"id": row["id"], "user": row["user"], "last": self.before, "recent": self.recent.get(),
                  "pages": sum(self.pages.values())})  # fmt: skip

    def remember(self, row: dict[str, Any], context: weir.ProcessContext) -> None:
        self.before = self.last.get()
        self.last.update(row["id"])
        self.recent.replace([*self.recent.get(), row["id"]][-RECENT:])
        page = f"page-{row['page']}"
        self.pages[page] = self.pages.get(page, 0) + 1
        if row["id"] % 10 == 0:
            assert context.timestamp is not None
            context.register_event_timer(context.timestamp + 3_600_000)

    def on_timer(self, timestamp_ms: int, context: weir.ProcessContext, out: weir.RowCollector) -> None:
        out.emit({"user": context.current_key, "timer": timestamp_ms, "last": self.last.get()})


class Remember(Seen):
    """Fills the states of `Seen`, and gives nothing out."""

    def process(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        self.remember(row, context)


def put(folder: Path, table: pa.Table, name: str = "visits") -> None:
    """Gives the job a file to read, whose rows come in their order."""
    (folder / "in").mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / f"{name}.parquet")
    (folder / f"{name}.parquet").rename(folder / "in" / f"{name}.parquet")


def flow(folder: Path, max_parallelism: int = 128, prefix: str = "", *, bounded: bool = True) -> weir.Dataflow:
    """Reads what `put` has put there, and more if it is not bounded; puts `prefix` before the names of users."""
    job = weir.Dataflow("visits", max_parallelism=max_parallelism)
    read = job.source(
        "visits", weir.DirectorySource(str(folder / "in"), weir.ParquetFormat(VISITS), event_time="at", bounded=bounded)
    )
    read = read.map_batches("names", partial(named, prefix))
    read.key_by("user").process("seen", Seen, SEEN, time="at").sink("seen-out", weir.ParquetSink(str(folder / "seen")))
    totals = {"n": weir.Count(), "pages": weir.Sum("page"), "mean": weir.Mean("page"), "latest": weir.Max("at")}
    read.key_by("user").aggregate("totals", totals).sink("totals-out", weir.ParquetSink(str(folder / "totals")))
    hourly = read.key_by("user").window("hourly", timedelta(minutes=10), "at", {"n": weir.Count()})
    hourly.sink("hourly-out", weir.ParquetSink(str(folder / "hourly")))
    sliding = read.key_by("user", "page").window(
        "sliding", timedelta(minutes=20), "at", {"top": weir.Max("id")}, slide=timedelta(minutes=5)
    )
    sliding.sink("sliding-out", weir.ParquetSink(str(folder / "sliding")))
    return job


def named(prefix: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    place = batch.schema.get_field_index("user")
    users = pa.array([prefix + user for user in batch.column(place).to_pylist()], pa.string())
    return batch.set_column(place, batch.schema.field(place), users)


def outputs(folder: Path, since: int = 0) -> dict[str, Any]:
    """What the job gave out: of visits from `since` on, of timers and windows, and the last totals of each user."""
    rows = list(committed(folder / "seen"))
    totals: dict[str, Any] = {}
    for row in committed(folder / "totals"):
        if row["user"] not in totals or totals[row["user"]]["n"] < row["n"]:
            totals[row["user"]] = row
    return {
        "seen": sorted((row for row in rows if row["id"] is not None and row["id"] >= since), key=str),
        "timers": sorted((row for row in rows if row["id"] is None), key=str),
        "totals": [totals[user] for user in sorted(totals)],
        "hourly": sorted(committed(folder / "hourly"), key=str),
        "sliding": sorted(committed(folder / "sliding"), key=str),
    }
