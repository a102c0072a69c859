"""W17: each way of writing brings every row once, whatever is repeated; rates are related round by round."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.batched_writes import (
    SIZES,
    Sample,
    Ticker,
    at_a_rate,
    full_speed,
    http_target,
    latencies_ms,
    postgres_target,
    report,
    steps,
)
from benchmarks.figures import MeasurementPlan
from runtime.launch.local import run_local


def rows(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": np.array(ids, np.int64), "key": np.array(ids, np.int64)})


def test_a_row_that_is_written_again_counts_once(database_url: str) -> None:
    with postgres_target(database_url) as postgres, http_target() as posts:
        for target in (postgres, posts):
            write = target.write()
            assert write(rows(1, 2, 3)).column("id").to_pylist() == [1, 2, 3]
            write(rows(3, 4))
            assert target.count() == 4
            target.clear()
            assert target.count() == 0


@pytest.mark.parametrize("size", [1, 100])
def test_the_measured_jobs_write_every_row(size: int, tmp_path: Path) -> None:
    with http_target() as posts:
        run_local(full_speed(size, posts.write()), storage=str(tmp_path / "state"))
        assert posts.count() == 2_000 * size
    with http_target() as posts:
        flow = at_a_rate(size, posts.write(), tmp_path / "out", Ticker(rows=50, rate=500))
        run_local(flow, storage=str(tmp_path / "state-of-rate"))
        assert posts.count() == 50
    found = latencies_ms(tmp_path / "out")
    assert len(found) == 50
    assert all(latency > 0 for latency in found)


def sample(target: str, size: int, rate: float) -> Sample:
    return Sample(target=target, size=size, rows_per_s=rate, p50_ms=1.0, p99_ms=2.0)


def test_the_largest_batches_are_related_to_single_rows_within_a_round(tmp_path: Path) -> None:
    rounds = [[sample("HTTP", size, size * factor) for size in SIZES] for factor in (1.0, 2.0, 3.0)]
    made = report(rounds, [])
    (figure,) = made.figures
    assert (figure.name, figure.value, figure.is_met) == (
        "HTTP: rows/s in batches of 1,000 to single rows",
        1_000,
        True,
    )
    (line,) = made.lines
    assert line == (
        "HTTP, rows per batch 1: 2 rows/s, p99 2 ms at 200 rows/s; 10: 20 rows/s, p99 2 ms at 200 rows/s; "
        "100: 200 rows/s, p99 2 ms at 200 rows/s; 1,000: 2,000 rows/s, p99 2 ms at 200 rows/s (medians)"
    )
    assert steps(MeasurementPlan(folder=tmp_path, rounds=2)) == 2 * 2 * len(SIZES)
