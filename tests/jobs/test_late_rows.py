"""Late rows of bounded runs: refused, or counted in words at the end; rows far ahead of the clock."""

from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

from runtime.connectors.formats.json_lines import JsonLinesFormat
from runtime.connectors.sinks.collect import CollectSink
from runtime.connectors.sources.directory import DirectorySource
from runtime.dataflow.builder import Dataflow
from runtime.errors import WeirError
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.local import run_local
from runtime.operators.aggregates import Count
from runtime.operators.output_tag import OutputTag

SCHEMA: Final = pa.schema([("key", pa.int64()), ("at", pa.int64())])
LATE: Final = OutputTag("late", SCHEMA)
YEAR_9999_MS: Final = 253_370_764_800_000


def write(folder: Path, name: str, times: range | list[int]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(f'{{"key": 1, "at": {time}}}\n' for time in times))


def run(tmp_path: Path, late_to: OutputTag | None = None, **source: Any) -> tuple[MemoryRunStore, int, int]:
    """The records of a run over `tmp_path/in`, the rows in windows, and the rows of the side output."""
    flow, totals, late = Dataflow("late"), CollectSink(), CollectSink()
    files = DirectorySource(str(tmp_path / "in"), JsonLinesFormat(SCHEMA), event_time="at", bounded=True, **source)
    rows = flow.source("rows", files).map_batches("same", lambda batch: batch)
    counts = rows.key_by("key").window("counts", timedelta(seconds=1), "at", {"n": Count()}, late_to=late_to)
    counts.sink("totals", totals)
    if late_to is not None:
        counts.side_output(late_to).sink("late", late)
    records = run_local(flow, storage=str(tmp_path / "state"))
    return records, sum(row["n"] for row in totals.rows()), len(late.rows()) if late_to else 0


@pytest.fixture
def unordered(tmp_path: Path) -> Path:
    """The names of the files are not in the order of time."""
    write(tmp_path / "in", "a.jsonl", range(100_000, 100_050))
    write(tmp_path / "in", "b.jsonl", range(50))
    return tmp_path


def test_a_bounded_source_without_a_stated_disorder_refuses_late_rows(unordered: Path) -> None:
    """As BATCH does: 50 of 100 rows would be missing in silence. The first late batch is refused."""
    with pytest.raises(WeirError, match=r"counts: \d+ rows are late.*max_disorder_ms.*late_to"):
        run(unordered)


def test_the_end_of_a_run_names_the_late_rows_of_each_step(unordered: Path, caplog: pytest.LogCaptureFixture) -> None:
    records, counted, _ = run(unordered, max_disorder_ms=0)
    assert (counted, records.late_rows) == (50, {"counts": 50})
    (line,) = (message for message in caplog.messages if "rows came late" in message)
    assert "'step': 'counts', 'rows': 50" in line


def test_late_rows_with_a_side_output_are_not_refused(unordered: Path) -> None:
    records, counted, late = run(unordered, late_to=LATE)
    assert (counted, late, records.late_rows) == (50, 50, {"counts": 50})


def test_a_stated_disorder_keeps_the_rows(unordered: Path) -> None:
    records, counted, _ = run(unordered, max_disorder_ms=200_000)
    assert (counted, records.late_rows) == (100, {})


def test_a_row_of_the_far_future_is_a_dead_letter_and_makes_no_other_row_late(tmp_path: Path) -> None:
    write(tmp_path / "in", "a.jsonl", [0, YEAR_9999_MS, *range(1, 3_000)])
    letters = tmp_path / "letters"
    records, counted, _ = run(
        tmp_path,
        max_disorder_ms=0,
        max_future_ms=3_600_000,
        on_malformed="dead_letter",
        dead_letter_path=str(letters),
    )
    assert (counted, records.late_rows) == (3_000, {})
    (file,) = letters.iterdir()
    assert "max_future_ms ahead of the clock" in file.read_text()


def test_a_row_of_the_far_future_fails_the_job_by_default(tmp_path: Path) -> None:
    write(tmp_path / "in", "a.jsonl", [0, YEAR_9999_MS])
    with pytest.raises(WeirError, match=r"a\.jsonl.*'at'.*ahead of the clock"):
        run(tmp_path, max_future_ms=3_600_000)
