"""Data sets: the same bytes every time, with the disorder that they promise, and answers that an oracle confirms."""

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import weir
from benchmarks import answers
from benchmarks.datasets import DATASETS, files
from benchmarks.datasets.ads import US_PER_ROW
from benchmarks.datasets.table import DISORDER_MS, MACROS, Late
from benchmarks.harness import Harness, RunPlan, lock_folder
from benchmarks.inputs import input_files
from benchmarks.peers import PEERS
from benchmarks.progress import Progress
from benchmarks.protocol import Task
from benchmarks.systems import SYSTEMS, python_of, weir_jobs
from benchmarks.systems import duckdb as batch
from benchmarks.systems.weir_inputs import WeirInputs
from benchmarks.workload import Workload
from benchmarks.workloads import WORKLOADS
from benchmarks.workloads.nexmark import R2
from runtime.operators.late_rows import LATE_RECORDS_COUNTER

ROWS = 300_000
PARQUET = {"format": "parquet", "pattern": "**/[!.]*.parquet", "columns": {}, "rows": ROWS}


def small(name: str, rows: int = ROWS) -> Workload:
    workload = WORKLOADS[name]
    return replace(workload, rows=dict.fromkeys(workload.rows, rows), check_rows=2_000, sink="files")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the files of data sets stay."""
    return tmp_path_factory.mktemp("datasets")


def table(workload: Workload, folder: Path, name: str) -> pa.Table:
    written = files.write(str(workload.dataset), "parquet", ROWS, folder)
    return pa.concat_tables([pq.read_table(path) for path in sorted((written / name).iterdir())])


def test_ten_percent_of_rows_are_late_and_one_in_a_thousand_too_late(tmp_path: Path) -> None:
    events = table(small("R1"), tmp_path, "events")
    moments = events["event_time"].cast(pa.int64()).to_numpy()
    due = moments[0] + pa.array(range(ROWS), pa.int64()).to_numpy() * US_PER_ROW
    behind_ms = (due - moments) / 1_000
    assert (behind_ms >= 0).all()
    too_late = behind_ms > DISORDER_MS
    assert too_late.sum() == ROWS // 1_000
    assert (too_late.nonzero()[0] >= ROWS * 7 // 8).all(), "by then every watermark has advanced"
    late = (behind_ms > 0) & ~too_late
    assert 0.099 < late.mean() <= 0.1
    assert behind_ms[late].max() > 0.9 * DISORDER_MS
    assert pc.unique(pc.utf8_length(events["ad_id"])).to_pylist() == [36]


def test_the_formats_hold_the_same_rows_and_files_are_written_once(tmp_path: Path) -> None:
    parquet, text = (files.write("ads", name, 1_000, tmp_path) for name in ("parquet", "json"))
    with duckdb.connect() as database:
        for name in DATASETS["ads"]:
            rows = f"select columns(*)::varchar from '{parquet / name}/*.parquet'"
            lines = f"from read_json('{text / name}/*.json')"
            if name == "events":
                lines = f"select * replace (event_time::timestamp as event_time) {lines}"
            lines = f"select columns(*)::varchar from ({lines})"
            assert database.execute(f"{rows} except all {lines}").fetchall() == []
            assert database.execute(f"{lines} except all {rows}").fetchall() == []
    before = {path: path.stat().st_ino for path in tmp_path.rglob("*.*")}
    assert files.write("ads", "json", 1_000, tmp_path) == text
    assert {path: path.stat().st_ino for path in tmp_path.rglob("*.*")} == before
    assert not list(tmp_path.glob("*.tmp"))


def test_the_answer_for_ads_is_that_of_a_plain_loop(tmp_path: Path) -> None:
    workload = small("R1")
    events = table(workload, tmp_path, "events").to_pylist()
    campaigns = {row["ad_id"]: row["campaign_id"] for row in table(workload, tmp_path, "campaigns").to_pylist()}
    end = max(event["event_time"] for event in events)
    counted: Counter[Any] = Counter()
    for number, event in enumerate(events):
        start = event["event_time"].replace(microsecond=0, second=event["event_time"].second // 10 * 10)
        if event["event_type"] == "view" and not (number % 125 == 60 and number >= ROWS * 7 // 8):
            counted[campaigns[event["ad_id"]], start] += 1
    columns = list(zip(*((*key, views) for key, views in counted.items()), strict=True))
    folder = tmp_path / "found"
    folder.mkdir()
    result = pa.table(dict(zip(("campaign_id", "window_start", "views"), columns, strict=True)))
    pq.write_table(result, folder / "part-0.parquet")
    assert answers.differences(workload, folder, PARQUET) == 0
    views = result["views"].to_pylist()
    closed = next(n for n, start in enumerate(columns[1]) if (end - start).total_seconds() > 30)
    views[closed] += 1
    pq.write_table(result.set_column(2, "views", pa.array(views)), folder / "part-0.parquet")
    assert answers.differences(workload, folder, PARQUET) == 2


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("R1", ROWS),
        ("R3", 20_000),
        ("R4", ROWS),
        ("R5", 60_000),
        ("R5-arrow", 60_000),
        ("R6", 40_000),
        *((query.name, 60_000 if query.name == "R2-q4" else ROWS) for query in R2),
    ],
)
def test_jobs_of_weir_and_batches_agree_with_the_answer(name: str, rows: int, tmp_path: Path, shared: Path) -> None:
    """Rows that are too late are in the batch, and missing from the job's output. The job counts each of them."""
    workload, options = small(name, rows), {**PARQUET, "rows": rows}
    with input_files(workload, shared / "inputs") as folder:
        task = workload.task("weir", str(tmp_path), 1.0, str(folder / "weir"))
        flow = weir.Dataflow("checked")
        weir_jobs.KINDS[task.kind](WeirInputs(flow, task, "measure")).sink("out", weir_jobs.sink_of(task, "measure"))
        records = weir.run_local(flow, parallelism=2, storage=str(tmp_path / "state"))
        late: Late = "on time" if workload.late else "all"
        assert answers.differences(workload, task.measured_output, options, late=late) == 0
        dropped = answers.late_rows(workload, rows) if workload.late else 0
        counted = records.live["counters"].get(LATE_RECORDS_COUNTER, 0)
        assert 0 <= counted <= dropped if workload.late_is_bound else counted == dropped, (counted, dropped)
        in_batch = Task(**{**json.loads(task.to_json()), "folder": str(tmp_path / "batch")})
        assert batch.run(in_batch, "measure", rows) == rows
        assert answers.differences(workload, in_batch.measured_output, options, late="all") == 0
        if name == "R1":
            assert answers.differences(workload, in_batch.measured_output, options) != 0


def test_reading_alone_reads_every_row(tmp_path: Path) -> None:
    workload = replace(small("R1-W0"), sink="discard")
    with input_files(workload, tmp_path / "inputs") as folder:
        task = workload.task("duckdb", str(tmp_path), 1.0, str(folder / "duckdb"))
        assert batch.run(task, "measure", ROWS) == ROWS
    assert workload.count_errors(ROWS, {"rows_out": ROWS}) == []
    assert workload.count_errors(ROWS, {"rows_out": ROWS - 1}) == [f"rows_out is {ROWS - 1}, not {ROWS}"]


@pytest.mark.parametrize("name", ["R2-q2", "R2-q11"])
def test_a_small_run_has_no_rows_that_are_too_late(name: str, tmp_path: Path) -> None:
    """The first R1 on Spark: one slot stood still for a second in the small run, and rows of the other were in time."""
    workload = replace(WORKLOADS[name], rows={"duckdb": ROWS}, check_rows=ROWS)
    with lock_folder(tmp_path), Progress([(f"{name} duckdb", 1.0)]) as progress:
        harness = Harness(tmp_path, RunPlan(repeats=1, time_box_s=60.0), progress)
        harness.run_rates([(workload, SYSTEMS["duckdb"])])
    assert harness.rates[name]["duckdb"].differences == 0, "late rows are in the answer of the full run only"
    small, full = (
        sum(pq.read_metadata(path).num_rows for path in (tmp_path / "data").glob(f"{pattern}/bids/*"))
        for pattern in sorted(path.name for path in (tmp_path / "data").iterdir())
    )
    assert {small, full} == {ROWS, ROWS - ROWS // 1_000}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("name", "system"), [("R1", "weir"), ("R1-json", "pathway")])
def test_a_job_is_right_also_after_a_sigkill(name: str, system: str, tmp_path: Path) -> None:
    """S1-06: all processes are killed in the second round; a new process goes on from the last checkpoint."""
    if python_of(SYSTEMS[system], PEERS, sys.executable) is None:
        pytest.skip(f"{system} is not installed")
    workload = replace(WORKLOADS[name], rows={system: 3_000_000}, check_rows=300_000)
    todo = [(workload, SYSTEMS[system])] * 2
    with lock_folder(tmp_path), Progress([(f"{name} {system}", 1.0)] * 2) as progress:
        harness = Harness(tmp_path, RunPlan(repeats=2, time_box_s=120.0), progress)
        harness.run_rates(todo)
    measured = harness.rates[name][system]
    assert measured.lost == []
    assert measured.is_verified
    assert measured.miscounted == ([] if system == "weir" else None)
    assert (len(measured.runs), len(measured.killed_s)) == (1, 1)
    assert measured.checkpoint_bytes[0] > 0


def test_a_row_in_twenty_is_delivered_twice_within_the_disorder(tmp_path: Path) -> None:
    """R6: repeated rows are equal in all fifty columns; the answer has each event once, in its hour."""
    written = files.write("clicks", "parquet", 10_000, tmp_path)
    with duckdb.connect() as database:
        scan = f"from read_parquet('{written}/clicks/*.parquet', file_row_number=true)"
        counted = database.execute(f"select count(*), count(distinct event_id) {scan}").fetchone()
        values = f"select columns(* exclude file_row_number) {scan}"
        once = database.execute(f"select count(*) from (select distinct * from ({values}))").fetchone()
        wide = database.execute(f"describe {values}").fetchall()
    assert counted is not None
    assert counted[0] == 10_000
    assert 480 <= 10_000 - counted[1] <= 500
    assert once == (counted[1],)
    assert len(wide) == 50


@pytest.mark.parametrize("workload", [each for each in WORKLOADS.values() if each.dataset and each.expected])
def test_the_answer_can_be_computed_for_the_rows_of_a_measured_run(workload: Workload) -> None:
    """Bounds of event time exceed 32 bits there. The tables have 1,000 rows here, all before the bounds."""
    with duckdb.connect() as database:
        for macro in MACROS:
            database.execute(macro)
        for name, each in DATASETS[str(workload.dataset)].items():
            database.execute(f"create view {name} as {each.query(1_000)}")
        answer = workload.expected.format(rows=max(workload.rows.values()))
        assert database.execute(f"select count(*) from ({answer})").fetchone() is not None
