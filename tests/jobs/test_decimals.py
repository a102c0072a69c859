"""A job with sums and means of money, in overlapping windows and over all rows, against plain Python."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

import weir
from runtime.core.job.restart_strategy import FixedDelay
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Bomb, Gated
from tests.jobs.live import positions_in

ROWS = pa.schema([("key", pa.int64()), ("at", pa.timestamp("ms")), ("price", pa.decimal128(9, 2))])
MONEY = {"total": weir.Sum("price"), "mean": weir.Mean("price")}
MINUTE = timedelta(minutes=1)


def price(value: int) -> Decimal:
    return Decimal(value * 37 % 1_000 - 300) / 100


def priced(row: dict[str, Any]) -> dict[str, Any]:
    at = datetime.fromtimestamp(row["value"], UTC).replace(tzinfo=None)
    return {"key": row["key"], "at": at, "price": price(row["value"])}


def test_sums_of_money_are_exact_after_a_failure(tmp_path: Path, jobs: Jobs) -> None:
    source, bomb, running, windows = Gated(total=100), Bomb(), weir.CollectSink(), weir.CollectSink()
    flow = weir.Dataflow("money")
    rows = flow.source("numbers", source).map_batches("bomb", bomb).map("prices", priced, ROWS)
    rows.key_by("key").aggregate("running", MONEY).sink("running_rows", running)
    rows.key_by("key").window("windows", MINUTE, "at", MONEY, slide=MINUTE / 2).sink("window_rows", windows)
    with jobs.running(flow.compile(2), tmp_path / "state", restart=FixedDelay(attempts=9, delay_ms=10)) as run:
        run.checkpoints(2)
        bomb.arm()
        source.total = 200
        run.wait_for(lambda: run.records.token > 1)
        ends = [source.total] * source.splits
        run.wait_for(lambda: positions_in(run.manifests[-1], tmp_path / "state", source.splits) == ends)
        run.end("drain")
    by_key, by_window = defaultdict[int, list[Decimal]](list), defaultdict[tuple[int, int], list[Decimal]](list)
    for split in range(source.splits):
        for value in range(source.total):
            key = (value * 31 + split) % source.keys
            by_key[key].append(price(value))
            for start in {value // 30 * 30, value // 30 * 30 - 30}:
                by_window[key, start].append(price(value))
    newest = {row["key"]: row["total"] for row in running.rows()}
    assert newest == {key: sum(prices) for key, prices in by_key.items()}
    sums = {
        (row["key"], int(row["window_start"].replace(tzinfo=UTC).timestamp())): (row["total"], row["mean"])
        for row in windows.rows()
    }
    assert sums == {
        window: (sum(prices), float(sum(prices) * 100) / (len(prices) * 100)) for window, prices in by_window.items()
    }
