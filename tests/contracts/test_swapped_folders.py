"""Folders of sources and sinks that become symbolic links out of WEIR_DATA_ROOTS while the job runs."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.access.data_roots import CheckedFolder, DataRoots
from runtime.connectors.formats import JsonLinesFormat
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.connectors.sources.directory import DirectorySource
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected
from tests.contracts.files import Reading, drop
from tests.contracts.test_sinks import batch as numbers
from tests.contracts.test_sinks import clean, commit, names, writer
from tests.contracts.test_sources import SCHEMA

SECRET = "postgresql://weir:swordfish@127.0.0.1/weir\n"
ROW = '{"id": 1, "at": 2}\n'


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root, beside a folder that is none."""
    (tmp_path / "data").mkdir()
    drop(tmp_path / "foreign", "a.jsonl", SECRET)
    monkeypatch.setenv("WEIR_DATA_ROOTS", str(tmp_path / "data"))
    return tmp_path / "data"


def swap(folder: Path) -> None:
    """Replaces `folder` by a link to the foreign one."""
    if folder.exists():
        folder.rename(folder.with_name(f"{folder.name}.old"))
    folder.symlink_to(folder.parent.parent / "foreign")


def reading(folder: Path) -> Reading:
    return Reading(DirectorySource(str(folder), JsonLinesFormat(SCHEMA)))


def refuses(folder: Path, use: Callable[[], object]) -> None:
    with pytest.raises(JobRejected, match=re.escape(f"{folder} is not a folder that jobs may use")) as error:
        use()
    assert error.value.code == "path-not-allowed"
    assert "swordfish" not in str(error.value)


@pytest.mark.parametrize("existed", [True, False])
def test_a_watched_folder_that_becomes_a_link_is_not_listed(data: Path, existed: bool) -> None:
    folder = data / "in"
    if existed:
        drop(folder, "a.jsonl", ROW)
    folder_reading = reading(folder)
    assert len(folder_reading.rows()) == int(existed)
    swap(folder)
    refuses(folder, folder_reading.rows)


def test_a_folder_that_becomes_a_link_after_it_was_listed_is_not_read(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, open_to_read = data / "in", CheckedFolder.open_to_read
    drop(folder, "a.jsonl", ROW)

    def swap_before(checked: CheckedFolder, name: str) -> int | None:
        swap(folder)
        return open_to_read(checked, name)

    monkeypatch.setattr(CheckedFolder, "open_to_read", swap_before)
    with pytest.raises(DataRejected, match="leads out of the folders that jobs may read") as error:
        reading(folder).rows()
    assert "swordfish" not in str(error.value)


def test_a_folder_that_becomes_a_link_after_the_check_is_not_read(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The open descriptor decides, so that nothing lies between check and use."""
    folder, read = data / "in", JsonLinesFormat.read
    drop(folder, "a.jsonl", ROW)

    def swap_before(self: JsonLinesFormat, path: Path, first_row: int) -> object:
        swap(folder)
        return read(self, path, first_row)

    monkeypatch.setattr(JsonLinesFormat, "read", swap_before)
    batch = reading(folder).poll()
    assert batch is not None
    assert batch.to_pylist() == [{"id": 1, "at": 2}]


def test_materialised_inputs_are_read_and_links_to_them_are_not(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """WEIR_INPUTS is a folder of Weir, which a pipeline reads by its own path only."""
    inputs = data.parent / "inputs"
    drop(inputs / "1" / "2" / "airports", "a.jsonl", ROW)
    monkeypatch.setenv("WEIR_INPUTS", str(inputs))
    assert len(reading(inputs / "1" / "2" / "airports").rows()) == 1
    (data / "in").symlink_to(inputs / "1" / "2" / "airports")
    refuses(data / "in", reading(data / "in").rows)


@pytest.mark.parametrize("use", ["open", "write", "prepare", "prepare nothing", "commit", "clean"])
def test_an_output_folder_that_becomes_a_link_is_not_written(data: Path, use: str) -> None:
    folder, foreign = data / "out", data.parent / "foreign"
    sink = writer(folder)
    if use == "prepare":
        sink.write(numbers(1))
    if use == "commit":
        sink.write(numbers(1))
        committables = sink.prepare(1)
    swap(folder)
    uses: dict[str, Callable[[], object]] = {
        "open": lambda: writer(folder, token=2),
        "write": lambda: sink.write(numbers(2)),
        "prepare": lambda: sink.prepare(1),
        "prepare nothing": lambda: sink.prepare(1),
        "commit": lambda: commit(folder, committables),
        "clean": lambda: clean(folder, 2),
    }
    refuses(folder, uses[use])
    assert names(foreign) == ["a.jsonl"]
    sink.close()


@pytest.mark.parametrize("planted", ["folder", "file"])
def test_dead_letters_go_through_no_link(data: Path, planted: str) -> None:
    folder, letters, victim = data / "in", data / "letters", data.parent / "foreign" / "a.jsonl"
    drop(folder, "a.jsonl", "broken\n")
    source = DirectorySource(
        str(folder), JsonLinesFormat(SCHEMA), on_malformed="dead_letter", dead_letter_path=str(letters)
    )
    reading = Reading(source)
    if planted == "folder":
        swap(letters)
        refuses(letters, reading.rows)
    else:
        letters.mkdir()
        (letters / "job-1-files-0.jsonl").symlink_to(victim)
        with pytest.raises(EnvironmentFailure, match=r"job-1-files-0\.jsonl"):
            reading.rows()
    assert victim.read_text() == SECRET
    assert names(victim.parent) == ["a.jsonl"]


def test_links_within_the_data_roots_are_followed(data: Path) -> None:
    drop(data / "real", "a.jsonl", ROW)
    (data / "in").symlink_to(data / "real")
    (data / "out").symlink_to(data / "made")
    (data / "made").mkdir()
    assert len(reading(data / "in").rows()) == 1
    sink = writer(data / "out")
    sink.write(numbers(1))
    assert commit(data / "out", sink.prepare(1)) == 1
    assert isinstance(ParquetSink(str(data / "out")).committer().missing([]), list)


def test_a_folder_is_not_made_behind_a_link_out_of_the_roots(tmp_path: Path) -> None:
    data, foreign = tmp_path / "data", tmp_path / "foreign"
    data.mkdir()
    foreign.mkdir()
    roots = DataRoots.of_environment({"WEIR_DATA_ROOTS": str(data)})
    (data / "out").symlink_to(foreign)
    with pytest.raises(JobRejected, match=f"{data / 'out'} is not a folder that jobs may use"):
        CheckedFolder.of("path", data / "out" / ".commit-log", roots).make()
    assert list(foreign.iterdir()) == []
    folder = CheckedFolder.of("path", data / "new", roots)
    folder.make()
    folder.make()
    assert folder.path.is_dir()
