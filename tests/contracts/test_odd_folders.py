"""Folders in which things go wrong: files that vanish between attempts, names and times that cannot be."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from runtime.connectors.formats import CsvFormat
from runtime.connectors.sources.directory import DirectorySource
from runtime.errors import DataRejected, EnvironmentFailure
from tests.contracts.files import Reading, drop

CSV = CsvFormat(pa.schema([("id", pa.int64()), ("at", pa.int64())]))


def csv(ids: range) -> str:
    return "id,at\n" + "".join(f"{number},{number}\n" for number in ids)


def ids(rows: list[dict[str, Any]]) -> list[int]:
    return [row["id"] for row in rows]


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize("folder_too", [True, False])
def test_a_file_read_in_part_that_is_gone_at_the_restore_is_named(
    tmp_path: Path, bounded: bool, folder_too: bool
) -> None:
    """The rows behind the position would be missing, and a bounded job would end as if it had read them. S1-22."""
    folder = tmp_path / "in"
    drop(folder, "a.csv", csv(range(50)))
    source = DirectorySource(str(folder), CSV, bounded=bounded)
    before = Reading(source)
    before.poll(10)
    snapshot = before.snapshot("chk-1")
    (folder / "a.csv").unlink()
    if folder_too:
        folder.rmdir()
    after = Reading(source, store=before.store, snapshots=[snapshot])
    with pytest.raises(EnvironmentFailure, match=r"there is no folder|a\.csv: the file is gone before it was read"):
        after.poll()


def test_a_file_read_to_its_end_may_go(tmp_path: Path) -> None:
    drop(tmp_path, "a.csv", csv(range(5)))
    before = Reading(DirectorySource(str(tmp_path), CSV))
    before.rows()
    (tmp_path / "a.csv").unlink()
    after = Reading(DirectorySource(str(tmp_path), CSV), store=before.store, snapshots=[before.snapshot("chk-1")])
    assert after.rows() == []


def test_a_name_that_is_not_utf8_is_refused_by_name(tmp_path: Path) -> None:
    """Positions are kept by name, as text."""
    drop(tmp_path, "a.csv", csv(range(5)))
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/b\xff.csv")).write_text(csv(range(5)))
    with pytest.raises(DataRejected, match=r"the name of the file 'b\\udcff\.csv' is not UTF-8") as error:
        Reading(DirectorySource(str(tmp_path), CSV)).poll()
    str(error.value).encode()


TOO_FAR = "id,at\n1,1\n2,9223372036854775807\n3,\n4,-9223372036854775808\n5,5\n"


def test_a_time_out_of_range_is_a_malformed_row(tmp_path: Path) -> None:
    drop(tmp_path, "a.csv", TOO_FAR)
    skipping = Reading(DirectorySource(str(tmp_path), CSV, event_time="at", on_malformed="skip"))
    assert ids(skipping.rows()) == [1, 5]
    assert skipping.context.counters == {"malformed_records": 3}
    drop(tmp_path, "a.csv", TOO_FAR.replace("3,\n", ""))
    with pytest.raises(DataRejected) as error:
        Reading(DirectorySource(str(tmp_path), CSV, event_time="at")).rows()
    assert str(error.value) == f"{tmp_path / 'a.csv'}: row 2, column 'at': the event time is out of range"


def test_dead_letters_are_kept_under_their_policy_only(tmp_path: Path) -> None:
    drop(tmp_path / "in", "a.csv", "id,at\n1,noon\n")
    letters = tmp_path / "letters"
    source = DirectorySource(str(tmp_path / "in"), CSV, on_malformed="skip", dead_letter_path=str(letters))
    reading = Reading(source)
    assert reading.rows() == []
    assert not letters.exists()


@pytest.mark.parametrize(
    "content", ["id,at\n" + "x" * 5_000_000 + ",1\n", "x" * 100_000 + ",at\n1,1\n"], ids=["value", "header"]
)
def test_what_is_said_of_a_huge_value_is_short(tmp_path: Path, content: str) -> None:
    """It goes to the master, into the database and onto a page."""
    drop(tmp_path, "a.csv", content)
    with pytest.raises(DataRejected) as error:
        Reading(DirectorySource(str(tmp_path), CSV)).poll()
    assert len(str(error.value)) < 2_000
    assert "a.csv: " in str(error.value)
