"""A step that turns out slow at its first row: few rows wait before it, so no barrier waits for many."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import weir
from tests.jobs.conftest import Jobs
from tests.jobs.numbers import SCHEMA, committed

FILES, ROWS = 4, 2_000  #: of each file
PARALLELISM = 2
MAX_ROWS_AHEAD = 40  #: of each source subtask: some batches of the slow start in each step on the way


class Forward(weir.KeyedProcessFunction):
    def process(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        out.emit(row)


def wait_for(gate: Path, row: dict[str, Any]) -> dict[str, Any]:
    while not gate.exists():
        time.sleep(0.05)
    return row


def slow_flow(folder: Path, gate: Path, output: Path) -> weir.Dataflow:
    folder.mkdir()
    for number in range(FILES):
        values = list(range(number * ROWS, (number + 1) * ROWS))
        pq.write_table(
            pa.table({"key": [value % 7 for value in values], "value": values}), folder / f"{number}.parquet"
        )
    flow = weir.Dataflow("slow")
    source = weir.ParquetSource(str(folder))
    numbers = flow.source("numbers", source).map_batches("pass", lambda batch: batch)
    keyed = numbers.key_by("value").process("keyed", Forward, SCHEMA)
    keyed.map("slow", partial(wait_for, gate), SCHEMA).sink("out", weir.ParquetSink(str(output)))
    return flow


def test_few_rows_are_read_before_a_slow_step_has_handled_its_first(jobs: Jobs, tmp_path: Path) -> None:
    """A barrier behind the rows of a large first batch would wait for minutes."""
    gate, output = tmp_path / "gate", tmp_path / "out"
    with jobs.running(slow_flow(tmp_path / "in", gate, output).compile(PARALLELISM), tmp_path / "state") as run:
        run.wait_for(lambda: run.operator("numbers").get("records_out", 0))
        read, previous = 1, 0
        while read != previous:
            time.sleep(0.5)  # of several reports
            previous, read = read, run.operator("numbers")["records_out"]
        assert read <= PARALLELISM * MAX_ROWS_AHEAD
        gate.touch()
        run.join()
    rows = sorted(row["value"] for row in committed(output))
    assert rows == list(range(FILES * ROWS))
