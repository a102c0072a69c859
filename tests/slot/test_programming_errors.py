"""A programming error in a job's code: two attempts, and the record's place; other errors are tried on."""

import importlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.restart_strategy import FixedDelay
from runtime.dataflow.builder import Dataflow
from runtime.io.memory.run_store import MemoryRunStore
from runtime.operators.functions.function import RowCollector
from runtime.operators.functions.keyed_process import KeyedProcessFunction, ProcessContext
from runtime.operators.functions.process import ProcessFunction, SubtaskContext
from tests.jobs.live import running
from tests.jobs.numbers import SCHEMA, Numbers

BAD = 37


class Plain(ProcessFunction):
    def process(self, row: dict[str, Any], context: SubtaskContext, out: RowCollector) -> None:
        check(row)


class Keyed(KeyedProcessFunction):
    def process(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
        check(row)


def check(row: dict[str, Any]) -> list[dict[str, Any]]:
    if row["value"] == BAD:
        row["missing"]
    return [row]


def whole_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch if BAD not in batch.column("value").to_pylist() else batch.select(["missing"])


STEPS = {
    "flat_map": lambda rows: rows.flat_map("step", check, SCHEMA),
    "process": lambda rows: rows.process("step", Plain, SCHEMA),
    "keyed": lambda rows: rows.key_by("key").process("step", Keyed, SCHEMA),
    "map_batches": lambda rows: rows.map_batches("step", whole_batch),
}


def run(step: Any, tmp_path: Path, attempts: int) -> MemoryRunStore:
    flow, records = Dataflow("wrong"), MemoryRunStore()
    step(flow.source("numbers", Numbers(total=100, splits=1))).sink("out", ParquetSink(str(tmp_path / "out")))
    restart = FixedDelay(attempts=attempts, delay_ms=10)
    with running(flow.compile(1), tmp_path / "state", records, restart=restart) as job:
        job.join()
    assert records.failure is not None
    return records


def test_the_line_is_that_of_an_installed_package_not_of_a_library_that_it_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "lib" / "site-packages"
    for package, code in (("acme", "import acmelib\ndef split(row):\n    return acmelib.cut(row)\n"),
                          ("acmelib", "\n\n\n\n\ndef cut(row):\n    return row['a'] / 0\n")):  # fmt: skip
        (site / package).mkdir(parents=True)
        (site / package / "__init__.py").write_text(code)
    monkeypatch.syspath_prepend(str(site))
    split = importlib.import_module("acme").split
    records = run(lambda rows: rows.flat_map("step", split, SCHEMA), tmp_path, attempts=1)
    assert records.failure is not None
    assert "(in __init__.py, line 3, at the row " in records.failure["message"]


@pytest.mark.parametrize("name", STEPS)
def test_a_key_error_is_final_after_two_failures_at_the_same_record(tmp_path: Path, name: str) -> None:
    """It was tried until the restart strategy gave up, here a hundred times."""
    records = run(STEPS[name], tmp_path, attempts=100)
    assert records.failure is not None
    message = records.failure["message"]
    assert (records.failure["code"], records.token) == ("final", 2)
    assert "KeyError" in message
    assert "test_programming_errors.py, line" in message
    assert "twice at the same record" in message
    assert name == "map_batches" or f"'value': {BAD}" in message


def test_an_error_of_another_kind_is_tried_as_often_as_the_strategy_says(tmp_path: Path) -> None:
    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise RuntimeError("a service answered nonsense")

    records = run(lambda rows: rows.map_batches("step", fail), tmp_path, attempts=3)
    assert records.failure is not None
    assert (records.failure["code"], records.token) == ("attempt-failed", 4)
    assert "test_programming_errors.py, line" in records.failure["message"]


@pytest.mark.parametrize("raised", [ValueError("boom"), SystemExit(1)], ids=["ValueError", "SystemExit"])
def test_any_error_of_a_rows_function_is_told_with_its_line_and_row(tmp_path: Path, raised: BaseException) -> None:
    def fail(row: dict[str, Any]) -> list[dict[str, Any]]:
        if row["value"] == BAD:
            raise raised
        return [row]

    records = run(lambda rows: rows.flat_map("step", fail, SCHEMA), tmp_path, attempts=1)
    message = (records.failure or {})["message"]
    assert type(raised).__name__ in message
    assert "test_programming_errors.py, line" in message
    assert f"'value': {BAD}" in message
