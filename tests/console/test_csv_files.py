"""CSV files: no formulas for spreadsheets, numbers as they are, plain file names."""

import csv
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import OperationalError

from console.csv_files import csv_file


def written(value: Any) -> str:
    content = csv_file("a", ["x"], [[value]]).getvalue().decode()
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
    assert csv_file("a", ["=x", "y"], [[None, 1]]).getvalue() == b"'=x,y\r\n,1\r\n"


def test_a_file_is_sent_in_parts_of_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.csv_files._PART_CHARACTERS", 5)
    assert list(csv_file("a", ["x"], [[1], [2], [3]])) == [b"x\r\n1\r\n", b"2\r\n3\r\n", b""]


def test_a_failure_before_the_first_part_is_no_file() -> None:
    """The page says then that the database is away."""
    with pytest.raises(OperationalError):
        csv_file("a", ["x"], failing())


def failing() -> Iterator[list[int]]:
    yield [1]
    raise OperationalError


def test_a_name_cannot_leave_its_header() -> None:
    assert csv_file('a"; x=1\n', [], []).headers["Content-Disposition"] == 'attachment; filename="a-x-1.csv"'
