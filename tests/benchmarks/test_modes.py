"""W15: the ways take turns, their outputs are compared, and times are related round by round."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.figures import MeasurementPlan
from benchmarks.modes.measure import Round, differences, one_round, report
from benchmarks.modes.one import FULL, MODES, Run

SECONDS = {"streaming": 4.0, "batch": 3.0, "sql": 2.0}


def write(folder: Path, *rows: tuple[int, int]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    columns: dict[str, Any] = {
        "key": [key for key, _ in rows],
        "window_start": pa.array([0] * len(rows), pa.timestamp("ms")),
        "count": [count for _, count in rows],
        "sum": [count for _, count in rows],
    }
    pq.write_table(pa.table(columns), folder / "part-0.parquet")
    return str(folder)


def test_the_same_rows_in_any_order_are_right(tmp_path: Path) -> None:
    one, other = write(tmp_path / "one", (1, 2), (3, 4)), write(tmp_path / "other", (3, 4), (1, 2))
    assert differences("windows", "batch", one, other) == []


def test_a_row_too_many_a_wrong_one_and_no_rows_at_all_are_said(tmp_path: Path) -> None:
    right = write(tmp_path / "right", (1, 2))
    doubled, wrong, empty = (
        write(tmp_path / name, *rows)
        for name, rows in (("doubled", [(1, 2), (1, 2)]), ("wrong", [(1, 3)]), ("empty", []))
    )
    assert differences("windows", "batch", doubled, right) == ["windows, batch: 1 rows differ of 1"]
    assert differences("windows", "batch", wrong, right) == ["windows, batch: 2 rows differ of 1"]
    assert differences("windows", "batch", empty, empty) == ["windows, batch: 0 rows differ of 0"]


def test_each_way_runs_once_in_a_round_and_the_next_round_begins_with_another(tmp_path: Path) -> None:
    order: list[str] = []

    def took(one: Run) -> float:
        order.append(one.way)
        write(Path(one.output(FULL)), (1, 2))
        return SECONDS[one.way]

    wrong: list[str] = []
    found = [one_round(MeasurementPlan(folder=tmp_path), "windows", turn, took, wrong) for turn in range(2)]
    assert [set(order[:3]), set(order[3:])] == [set(MODES), set(MODES)]
    assert order[0] != order[3]
    assert [one.seconds for one in found] == [SECONDS, SECONDS]
    assert wrong == []


def test_times_are_related_within_a_round() -> None:
    slow = {way: 2 * seconds for way, seconds in SECONDS.items()}
    found = report([Round(job="windows", seconds=SECONDS), Round(job="windows", seconds=slow)], [])
    assert [figure.value for figure in found.figures] == [1.5, 0.75]
    assert "batch 4.5 s" in found.lines[0]
