"""The files that systems read: the sequence, whole and in order, with the types that a system asks for."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks import inputs
from benchmarks.__main__ import QUICK_SHARE
from benchmarks.systems.weir import FORMATS
from benchmarks.workloads import WORKLOADS
from runtime.connectors.sources.sequence import MULTIPLIER, SCHEMA


@pytest.mark.parametrize("name", ["W7", "W7-json"])
def test_files_hold_the_sequence_in_order_and_go_with_the_workload(name: str, tmp_path: Path) -> None:
    workload = replace(WORKLOADS[name], check_rows=1_000, rows={"weir": 5_000, "spark": 1_250})
    assert workload.files is not None
    with inputs.made(workload, tmp_path / "inputs", share=0.4) as folder:
        for phase, rows in (("weir/check", 1_000), ("weir/measure", 2_000), ("spark/measure", 500)):
            files = sorted((folder / phase).iterdir())
            assert files == sorted(files, key=lambda path: path.stat().st_mtime), "who goes by time reads in order too"
            batches = [chunk.batch for path in files for chunk in FORMATS[workload.files].read(path, 0)]
            found = pa.Table.from_batches(batches, SCHEMA)
            assert found["id"].to_pylist() == list(range(rows))
            assert found["key"].to_pylist() == [number * MULTIPLIER % 1_000 for number in range(rows)]
            assert found["time"].cast(pa.int64()).to_pylist() == list(range(rows))
    assert not folder.exists()


def test_rows_that_an_engine_makes_need_no_files(tmp_path: Path) -> None:
    with inputs.made(WORKLOADS["W1"], tmp_path / "inputs") as folder:
        assert not folder.exists()


@pytest.mark.parametrize("name", ["W7", "W7-json"])
def test_the_rows_of_each_system_are_those_of_whole_files(name: str) -> None:
    """Its output is compared with the answer for so many rows; and so in a quick run."""
    workload = WORKLOADS[name]
    most = max(workload.rows.values())
    for system, rows in workload.rows.items():
        assert rows * inputs.FILES % most == 0
        files = rows * inputs.FILES // most
        assert round(most * QUICK_SHARE) * files // inputs.FILES == workload.task(system, "", QUICK_SHARE).rows
