"""The feeder: every row once, disorder within its bound, files that appear whole, and a stop that loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import nycflights
from examples.feeder import HOUR_MS, FeedPlan, FolderTaken, add_event_time, disorder_rows, feed, slices
from examples.schemas import FLIGHT_FILES, FLIGHTS
from tests.example_counts import examples

ROOT = Path(__file__).resolve().parents[2]
COUNT = 40


@pytest.fixture(scope="module")
def year() -> pa.Table:
    return nycflights.read_flights()


def read(folder: Path) -> pa.Table:
    """What a reader finds, in the order of the names."""
    convert = pacsv.ConvertOptions(column_types=FLIGHT_FILES, null_values=[""], strings_can_be_null=True)
    names = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    return pa.concat_tables([pacsv.read_csv(name, convert_options=convert) for name in names])


def test_the_package_holds_the_year_of_the_readme(year: pa.Table) -> None:
    assert year.num_rows == 336_776
    assert year["dep_time"].null_count == year["dep_delay"].null_count == 8_255
    assert pacsv.read_csv(nycflights.locate("airlines.csv")).num_rows == 16


def test_every_row_is_written_once_and_unchanged(year: pa.Table, tmp_path: Path) -> None:
    some = year.slice(1_000, 5_000)
    assert sum(feed(some, tmp_path, FeedPlan(files=COUNT), 0)) == some.num_rows
    written = read(tmp_path)
    order = [(name, "ascending") for name in FLIGHTS.names]
    assert written.select(FLIGHTS.names).sort_by(order) == some.sort_by(order)


def test_no_row_comes_later_than_the_bound(year: pa.Table) -> None:
    plan = FeedPlan(disorder_hours=6.0)
    event_ms = disorder_rows(add_event_time(year), plan)["scheduled"].cast(pa.int64()).to_numpy()
    behind_ms = np.maximum.accumulate(event_ms) - event_ms
    assert 0 < behind_ms.max() <= 6 * HOUR_MS


def test_two_files_read_in_the_wrong_order_stay_within_the_default_of_the_job(year: pa.Table) -> None:
    from examples.pipelines.flights import FlightsParams

    rows = disorder_rows(add_event_time(year), FeedPlan())
    files = [part["scheduled"].cast(pa.int64()).to_numpy() for part in slices(rows, FeedPlan().files)]
    worst_ms = max(after.max() - before.min() for before, after in pairwise(files))
    assert worst_ms <= FlightsParams(flights_dir="/in", output_dir="/out").max_disorder_hours * HOUR_MS


def test_the_event_time_is_the_scheduled_minute_of_the_local_day(year: pa.Table) -> None:
    first = add_event_time(year).slice(0, 1).to_pylist()[0]
    assert first["scheduled"].isoformat() == "2013-01-01T05:15:00"


def test_a_second_feeder_goes_on_where_the_first_one_stood(year: pa.Table, tmp_path: Path) -> None:
    some, plan = year.slice(0, 2_000), FeedPlan(files=10)
    reference, broken = tmp_path / "whole", tmp_path / "broken"
    list(feed(some, reference, plan, 0))
    started = feed(some, broken, plan, 0)
    for _ in range(4):
        next(started)
    started.close()
    before = {path.name: path.stat().st_mtime_ns for path in broken.glob("flights-*.csv")}
    assert len(before) == 4
    assert sum(feed(some, broken, plan, 0)) == 2_000
    assert {name: (broken / name).stat().st_mtime_ns for name in before} == before
    assert {path.name: path.read_bytes() for path in broken.iterdir()} == {
        path.name: path.read_bytes() for path in reference.iterdir()
    }


def test_a_folder_of_another_plan_is_left_alone(year: pa.Table, tmp_path: Path) -> None:
    list(feed(year.slice(0, 100), tmp_path, FeedPlan(files=2), 0))
    with pytest.raises(FolderTaken, match="seed"):
        next(feed(year.slice(0, 100), tmp_path, FeedPlan(files=2, seed=7), 0))


def test_a_killed_feeder_leaves_whole_files_only(year: pa.Table, tmp_path: Path) -> None:
    feeder = [sys.executable, "-m", "examples.feeder", "--to", str(tmp_path)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    child = subprocess.Popen([*feeder, "--seconds", "300"], env=env, stderr=subprocess.DEVNULL)
    try:
        while len(list(tmp_path.glob("flights-*.csv"))) < 3:
            assert child.poll() is None, "the feeder ended by itself"
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    written = list(tmp_path.glob("flights-*.csv"))
    assert read(tmp_path).num_rows == sum(part.num_rows for part in list(slices(year, 365))[: len(written)])
    assert subprocess.run([*feeder, "--seconds", "0"], env=env, capture_output=True, check=False).returncode == 0
    assert read(tmp_path).num_rows == 336_776


@settings(max_examples=examples(50), deadline=None)
@given(rows=st.integers(1, 300), data=st.data())
def test_slices_are_even_and_complete(rows: int, data: st.DataObject) -> None:
    files = data.draw(st.integers(1, rows))
    table = pa.table({"n": range(rows)})
    parts = list(slices(table, files))
    assert len(parts) == files
    assert pa.concat_tables(parts) == table
    assert max(p.num_rows for p in parts) - min(p.num_rows for p in parts) <= 1


def test_more_files_than_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="between 1 and 3"):
        slices(pa.table({"n": [1, 2, 3]}), 4)
