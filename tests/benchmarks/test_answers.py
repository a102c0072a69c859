"""The comparison of a system's output with the answer: it passes what is right and counts what is not."""

import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import answers
from benchmarks.protocol import Task
from benchmarks.systems.weir import window
from benchmarks.workload import Workload, key_sql
from benchmarks.workloads import WORKLOADS
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.connectors.sources.sequence import SequenceSource
from runtime.dataflow.builder import Dataflow
from runtime.launch.local import run_local

ROWS = 4_200_000


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return WORKLOADS["W1"].task("weir", str(tmp_path))


def differences(workload: Workload, task: Task, checked: dict[str, Any]) -> int | None:
    return answers.differences(workload, task.output, {"columns": {}, "rows": ROWS, **checked})


def windows(count: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    """The right answer for W1's first windows, worked out by hand."""
    ids = np.arange(count * 1_000_000)
    group = ids // 1_000_000 * 1_000 + ids * 2_654_435_761 % 1_000
    return {
        "key": np.arange(count * 1_000) % 1_000,
        "window_start": (np.arange(count * 1_000) // 1_000 * 1_000).astype("datetime64[ms]"),
        "count": np.bincount(group),
        "sum": np.bincount(group, weights=ids).astype(np.int64),
    }


def write(task: Task, columns: dict[str, Any]) -> None:
    task.output.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), task.output / "part-0.parquet")


PARQUET = {"format": "parquet", "pattern": "part-*.parquet"}


def test_right_windows_pass_and_windows_still_open_are_not_asked_for(task: Task) -> None:
    write(task, windows(1))
    assert differences(WORKLOADS["W1"], task, PARQUET) == 0
    write(task, windows(3))
    assert differences(WORKLOADS["W1"], task, PARQUET) == 0


def test_each_wrong_or_missing_or_repeated_row_counts(task: Task) -> None:
    found = windows(1)
    found["sum"][7] += 1
    write(task, found)
    assert differences(WORKLOADS["W1"], task, PARQUET) == 2  # one that is wrong, one that is missing
    write(task, {name: column[:-3] for name, column in windows(1).items()})
    assert differences(WORKLOADS["W1"], task, PARQUET) == 3
    write(task, {name: np.append(column, column[:1]) for name, column in windows(1).items()})
    assert differences(WORKLOADS["W1"], task, PARQUET) == 1


def test_no_output_is_not_right_output(task: Task) -> None:
    assert differences(WORKLOADS["W1"], task, PARQUET) is None
    task.output.mkdir()
    (task.output / "part-0.parquet").touch()
    assert differences(WORKLOADS["W1"], task, PARQUET) is None


def test_csv_without_a_header_is_read(task: Task) -> None:
    columns = {"key": "bigint", "total": "bigint"}
    task.output.mkdir()
    (task.output / "0.csv").write_text("0,0\n761,1\n522,2\n")
    checked = {"format": "csv", "pattern": "*.csv", "columns": columns, "rows": 3}
    assert differences(WORKLOADS["W6"], task, checked) == 0
    (task.output / "1.csv").write_text("0,0\n")
    assert differences(WORKLOADS["W6"], task, checked) == 2


def test_of_changes_those_that_withdraw_a_row_are_left_out(task: Task) -> None:
    keys = [number * 2_654_435_761 % 100_003 for number in range(2)]
    rows = [("c", keys[0], 1, 0), ("c", keys[1], 1, 1), ("d", keys[1], 9, 9)]
    lines = [{"before": None, "after": {"key": k, "count": c, "sum": s}, "op": op} for op, k, c, s in rows]
    task.output.mkdir()
    (task.output / "part-0").write_text("".join(json.dumps(line) + "\n" for line in lines))
    columns = {"after": "struct(key bigint, count bigint, sum bigint)", "op": "varchar"}
    checked = {"format": "changes", "pattern": "**/part-*", "columns": columns, "rows": 2}
    assert differences(WORKLOADS["W3"], task, checked) == 0


def test_the_keys_in_sql_are_those_of_the_source(tmp_path: Path) -> None:
    """The answer and the engine compute the key of a row each in its own way."""
    for name in ("W2", "W3-10M-zipf"):
        workload = WORKLOADS[name]
        flow = Dataflow(name)
        source = SequenceSource(rows=50_000, keys=workload.keys, zipf=workload.zipf)
        flow.source("numbers", source).sink("out", ParquetSink(str(tmp_path / name)))
        run_local(flow, storage=str(tmp_path / "state"))
        files = f"read_parquet('{tmp_path / name}/part-*.parquet')"
        with duckdb.connect() as database:
            query = f"select count(*), count(*) filter (key <> {key_sql(workload)}) from {files}"
            wrong = database.execute(query).fetchone()
        assert wrong == (50_000, 0)


@pytest.mark.parametrize("rows", [2_000_000, 2_000_300])
def test_what_comes_out_of_windows_that_overlap_is_known_without_computing_them(rows: int) -> None:
    """Also where the last second is short of some keys."""
    for name in ("W4-10", "W4-60"):
        workload = WORKLOADS[name]
        assert workload.totals is not None
        with duckdb.connect() as database:
            counted = database.execute(f"""
                with panes as (
                    select {key_sql(workload)} as key, id // 1000000 as second, count(*) as count, sum(id) as sum
                    from range({rows}) as t(id) group by all
                ),
                windows as (from panes cross join range({workload.window_s}))
                , given as (select key, second - range as start, sum(count) as count, sum(sum) as sum
                    from windows group by all)
                select count(*), sum(key)::bigint, sum(count)::bigint, sum(sum)::bigint from given
            """).fetchone()
        assert counted == tuple(workload.totals(rows).values())


@pytest.mark.parametrize(("name", "whole"), [("W4-10", 22), ("W4-60", 22)])
def test_of_windows_that_overlap_whole_ones_are_compared(tmp_path: Path, name: str, whole: int) -> None:
    """Every subtotal of a window counts, so the small run must reach over more event seconds than a window has."""
    workload = WORKLOADS[name]
    task = workload.task("weir", str(tmp_path))
    flow = Dataflow("checked")
    source = SequenceSource(rows=task.check_rows, keys=task.keys, microseconds_per_row=task.us_per_row("check"))
    window(flow.source("numbers", source), task.window_s, task.slide_s).sink("out", ParquetSink(str(task.output)))
    run_local(flow, parallelism=2, storage=str(tmp_path / "state"))
    assert answers.differences(workload, task.output, {**PARQUET, "columns": {}, "rows": task.check_rows}) == 0
    with duckdb.connect() as database:
        starts = f"select count(distinct window_start) from read_parquet('{task.output}/part-*.parquet')"
        counted = f"where count >= {workload.window_s * 10} and window_start < timestamp '1970-01-01 00:00:22'"
        assert database.execute(f"{starts} {counted}").fetchone() == (whole,)
