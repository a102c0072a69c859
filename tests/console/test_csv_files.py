"""CSV files: no formulas for spreadsheets, numbers as they are, plain file names."""

import csv
from datetime import UTC, datetime
from typing import Any

import pytest

from console.csv_files import csv_file


def written(value: Any) -> str:
    content = csv_file("a", ["x"], [[value]]).content.decode()
    return list(csv.reader(content.splitlines(keepends=True)))[1][0]


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-cmd|' /C calc'!A0", "@SUM(1)", "\t=1", "\r=1", "-1+2", "-", "+"])
def test_a_text_that_a_spreadsheet_would_run_gets_an_apostrophe(text: str) -> None:
    assert written(text) == f"'{text}"


@pytest.mark.parametrize(
    ("value", "cell"),
    [(-3, "-3"), (-2.5, "-2.5"), ("-3", "-3"), ("+1.5e-3", "+1.5e-3"), ("a=b", "a=b"), ("", ""), (True, "True"),
     (datetime(2026, 11, 26, tzinfo=UTC), "2026-11-26T00:00:00+00:00")],
)  # fmt: skip
def test_numbers_times_and_other_texts_stay(value: Any, cell: str) -> None:
    assert written(value) == cell


def test_null_is_empty_and_headers_are_guarded_too() -> None:
    assert csv_file("a", ["=x", "y"], [[None, 1]]).content == b"'=x,y\r\n,1\r\n"


def test_a_file_that_lacks_rows_says_so_in_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.csv_files.MAX_ROWS", 2)
    whole, cut = csv_file("a", ["x"], [[1], [2]]), csv_file("a", ["x"], iter([[1], [2], [3]]))
    assert whole.headers["Content-Disposition"] == 'attachment; filename="a.csv"'
    assert cut.headers["Content-Disposition"] == 'attachment; filename="a-first-2-rows.csv"'
    assert cut.content == whole.content == b"x\r\n1\r\n2\r\n"


def test_a_name_cannot_leave_its_header() -> None:
    assert csv_file('a"; x=1\n', [], []).headers["Content-Disposition"] == 'attachment; filename="a-x-1.csv"'
