"""The files that systems read: the sequence, whole and in order, with the types that a system asks for."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks import inputs
from benchmarks.__main__ import QUICK_SHARE
from benchmarks.datasets.files import FILES
from benchmarks.systems.weir import FORMATS
from benchmarks.workload import DISORDER_MS
from benchmarks.workloads import WORKLOADS
from runtime.connectors.sources.sequence import KEY_MULTIPLIER, SCHEMA


@pytest.mark.parametrize("name", ["W7", "W7-json"])
def test_files_hold_the_sequence_in_order_and_go_with_the_workload(name: str, tmp_path: Path) -> None:
    workload = replace(WORKLOADS[name], check_rows=1_000, rows={"weir": 5_000, "spark": 1_250})
    assert workload.files is not None
    with inputs.input_files(workload, tmp_path / "inputs", share=0.4) as folder:
        for phase, rows in (("weir/check", 1_000), ("weir/measure", 2_000), ("spark/measure", 500)):
            files = sorted((folder / phase).iterdir())
            assert files == sorted(files, key=lambda path: path.stat().st_mtime), "who goes by time reads in order too"
            batches = [chunk.batch for path in files for chunk in FORMATS[workload.files](SCHEMA).read(path, 0)]
            table = pa.Table.from_batches(batches, SCHEMA)
            assert table["id"].to_pylist() == list(range(rows))
            assert table["key"].to_pylist() == [number * KEY_MULTIPLIER % 1_000 for number in range(rows)]
            assert table["time"].cast(pa.int64()).to_pylist() == list(range(rows))
    assert not folder.exists()


def test_text_keys_are_uuids_and_every_tenth_row_is_late(tmp_path: Path) -> None:
    workload = replace(WORKLOADS["W7-text"], check_rows=1_000, rows={"weir": 4_000_000})
    schema = SCHEMA.set(1, pa.field("key", pa.string()))
    with inputs.input_files(workload, tmp_path / "inputs") as folder:
        (first, *_, last) = sorted((folder / "weir" / "measure").iterdir())
        batches = [chunk.batch for path in (first, last) for chunk in FORMATS["parquet"](schema).read(path, 0)]
    table = pa.Table.from_batches(batches, schema)
    assert pc.unique(pc.utf8_length(table["key"])).to_pylist() == [36]
    assert len(table["key"].unique()) == 1_000
    behind = pc.subtract(table["id"], table["time"].cast(pa.int64())).to_numpy()
    late = behind > 0
    assert set(table["id"].filter(pa.array(late)).to_numpy() % 10) == {0}
    assert behind.min() == 0
    assert 1_000_000 < behind.max() < 1_000 * DISORDER_MS


def test_rows_that_an_engine_makes_need_no_files(tmp_path: Path) -> None:
    with inputs.input_files(WORKLOADS["W1"], tmp_path / "inputs") as folder:
        assert not folder.exists()


@pytest.mark.parametrize("name", ["W7", "W7-json", "W7-text", "W7-text-100k"])
def test_the_rows_of_each_system_are_those_of_whole_files(name: str) -> None:
    """Its output is compared with the answer for so many rows; and so in a quick run."""
    workload = WORKLOADS[name]
    most = max(workload.rows.values())
    for system, rows in workload.rows.items():
        assert rows * FILES % most == 0
        files = rows * FILES // most
        assert round(most * QUICK_SHARE) * files // FILES == workload.task(system, "", QUICK_SHARE).rows
