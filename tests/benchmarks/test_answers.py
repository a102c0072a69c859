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
    columns = windows(1)
    columns["sum"][7] += 1
    write(task, columns)
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
    workload = WORKLOADS["W2"]
    flow = Dataflow("keys")
    source = SequenceSource(rows=50_000, keys=workload.keys)
    flow.source("numbers", source).sink("out", ParquetSink(str(tmp_path / "out")))
    run_local(flow, storage=str(tmp_path / "state"))
    files = f"read_parquet('{tmp_path / 'out'}/part-*.parquet')"
    with duckdb.connect() as database:
        query = f"select count(*), count(*) filter (key <> {key_sql(workload)}) from {files}"
        wrong = database.execute(query).fetchone()
    assert wrong == (50_000, 0)
