"""Damaged output files: none is continued, merged or published, and the error names the file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

import weir
from runtime.connectors.sinks.file_committer import FILES_IN_PROGRESS, SMALL_FILES
from runtime.errors import EnvironmentFailure
from tests.connectors.sinks.test_row_files import NO_LIMITS, Subtask, commit, hidden, opened, rows

SEEDS = range(20)

SINKS: dict[str, tuple[Callable[[str], Any], str]] = {
    "json lines": (lambda path: weir.JsonLinesSink(path, **NO_LIMITS), FILES_IN_PROGRESS),
    "csv": (lambda path: weir.CsvSink(path, **NO_LIMITS), FILES_IN_PROGRESS),
    "avro": (lambda path: weir.AvroSink(path, **NO_LIMITS), FILES_IN_PROGRESS),
    "rolled json lines": (lambda path: weir.JsonLinesSink(path, roll_on_checkpoint=True), FILES_IN_PROGRESS),
    "parquet": (weir.ParquetSink, FILES_IN_PROGRESS),
    "small parquet": (lambda path: weir.ParquetSink(path, compact_checkpoints=9), SMALL_FILES),
}


@dataclass
class Taken:
    """A checkpoint of a sink, whose hidden file is in `path`."""

    sink: Any
    list_state: str
    committables: list[Any]
    entries: list[Any]
    path: Path

    @property
    def recorded_bytes(self) -> int:
        return int([*self.committables, *self.entries][0]["bytes"])

    def publish(self, *numbers: int) -> None:
        """Commits the output of the checkpoint, as a restore does, and of an attempt that continues it to the end."""
        commit(self.sink, self.committables, 1, 2)
        successor = opened(self.sink, self.entries, token=2, list_state=self.list_state)
        for number in numbers:
            successor.write(rows(number))
        successor.finish()
        commit(self.sink, successor.snapshot(2)[0], 2, 2)


def taken(folder: Path, kind: str) -> Taken:
    make, list_state = SINKS[kind]
    sink = make(str(folder))
    first = opened(sink, list_state=list_state)
    for numbers in ((1, 2, 3), (4, 5)):
        first.write(rows(*numbers))
    committables, entries = first.snapshot(1)
    (name,) = hidden(folder)
    return Taken(sink, list_state, committables, entries, folder / name)


def damaged(data: bytes, recorded: int, chance: Random) -> bytes:
    """The data with a bit flipped, a byte replaced, a range zeroed, or cut off, within the recorded part."""
    at = chance.randrange(recorded)
    match chance.randrange(4):
        case 0:
            return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
        case 1:
            return data[:at] + bytes([(data[at] + chance.randrange(1, 256)) % 256]) + data[at + 1 :]
        case 2:
            end = chance.randrange(at + 1, recorded + 1)
            zeroed = data[:at] + bytes(end - at) + data[end:]
            return zeroed if zeroed != data else data[:at] + b"\xff" + data[at + 1 :]
        case _:
            return data[:at]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("part-*")}


@pytest.mark.parametrize("kind", SINKS)
def test_no_damaged_file_is_published(tmp_path: Path, kind: str) -> None:
    for seed in SEEDS:
        folder = tmp_path / str(seed)
        of = taken(folder, kind)
        data = of.path.read_bytes()
        of.path.write_bytes(damaged(data, of.recorded_bytes, Random(seed)))
        with pytest.raises(EnvironmentFailure, match=of.path.name):
            of.publish(6)
        assert contents(folder) == {}, seed
        of.path.write_bytes(data)  # from a backup
        of.publish(6)
        assert len(contents(folder)) >= 1, "the claims and marks of the refused commit do no harm"


@pytest.mark.parametrize("kind", ["json lines", "csv", "avro"])
def test_damage_behind_the_recorded_part_does_no_harm(tmp_path: Path, kind: str) -> None:
    of = taken(tmp_path / "damaged", kind)
    with of.path.open("ab") as file:
        file.write(b"of an older attempt")
    of.publish(6)
    taken(tmp_path / "whole", kind).publish(6)
    assert [*contents(tmp_path / "damaged").values()] == [*contents(tmp_path / "whole").values()]


@pytest.mark.parametrize("kind", SINKS)
def test_damage_within_an_attempt_is_found_before_the_file_is_published(tmp_path: Path, kind: str) -> None:
    """The attempt still holds the file open."""
    make, list_state = SINKS[kind]
    sink = make(str(tmp_path))
    only = opened(sink, list_state=list_state)
    only.write(rows(1, 2, 3))
    before, _ = only.snapshot(1)
    (name,) = hidden(tmp_path)
    _flip(tmp_path / name)
    with pytest.raises(EnvironmentFailure, match=name):
        _end(sink, only, before)
    assert contents(tmp_path) == {}


def _end(sink: Any, only: Subtask, before: Sequence[Any]) -> None:
    commit(sink, before)
    only.write(rows(4))
    only.finish()
    commit(sink, only.snapshot(2)[0], 2)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    with path.open("r+b") as file:  # the inode that a writer may hold open
        file.write(data)


def test_a_small_file_that_was_damaged_is_not_merged(tmp_path: Path) -> None:
    """A merge would give its rows a file of its own, with a checksum that fits."""
    sink = weir.ParquetSink(str(tmp_path), compact_checkpoints=3)
    only = opened(sink, list_state=SMALL_FILES)
    for checkpoint in (1, 2):
        only.write(rows(checkpoint))
        assert only.snapshot(checkpoint)[0] == []
    first = hidden(tmp_path)[0]
    _flip(tmp_path / first)
    with pytest.raises(EnvironmentFailure, match=first):
        _end(sink, only, [])
    assert contents(tmp_path) == {}


def test_a_damaged_file_is_not_copied_into_another_folder(tmp_path: Path) -> None:
    """A savepoint that is restored into another output folder."""
    for kind in SINKS:
        of = taken(tmp_path / kind / "a", kind)
        _flip(of.path)
        of.sink = SINKS[kind][0](str(tmp_path / kind / "b"))
        with pytest.raises(EnvironmentFailure, match=of.path.name):
            of.publish(6)
        assert contents(tmp_path / kind / "b") == {}
