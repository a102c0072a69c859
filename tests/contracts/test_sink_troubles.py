"""The Parquet sink and dead letters where storage fails them: a full disk, an end at every step."""

import os
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from runtime import durable
from runtime.connectors.dead_letters import DeadLetters, open_dead_letters
from runtime.connectors.formats import Malformed
from runtime.errors import EnvironmentFailure
from runtime.ports import SinkWriter
from tests.contracts.test_sinks import batch, clean, commit, context, names, visible, writer


@contextmanager
def no_file_above(nbytes: int) -> Iterator[None]:
    """As on a full disk: a write fails in the middle, and so does every one after it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("rows", [1, 20_000, 5_000_000], ids=["the end", "a page", "a row group"])
def test_a_full_disk_names_the_file_and_keeps_no_part_of_it(tmp_path: Path, rows: int) -> None:
    """What is left in progress would keep the disk full until another attempt begins."""
    sink = writer(tmp_path)
    numbers = np.random.default_rng(1).integers(0, 2**62, rows)
    with no_file_above(100):
        with pytest.raises(EnvironmentFailure) as failed:
            all_at_once(sink, pa.RecordBatch.from_arrays([pa.array(numbers)], names=["n"]))
        sink.close()
    file = tmp_path / ".weir-7-1-out-0-1.inprogress"
    assert str(failed.value).startswith(f"{file}: it cannot be written: [Errno 27]")
    assert names(tmp_path) == []


def test_dead_letters_that_cannot_be_written_name_their_file(tmp_path: Path) -> None:
    letters = open_dead_letters(str(tmp_path), context("7", 1, "in", 0))
    bad = Malformed(row=0, column="", reason="no row", text="x" * 200)
    with (
        no_file_above(100),
        pytest.raises(EnvironmentFailure, match=r"7-1-in-0\.jsonl: it cannot be written: \[Errno 27\]"),
    ):
        keep(letters, bad)


def keep(letters: DeadLetters, bad: Malformed) -> None:
    letters.write("a.csv", [bad])
    letters.sync()


def all_at_once(sink: SinkWriter, rows: pa.RecordBatch) -> None:
    sink.write(rows)
    sink.prepare(1)


class Cut(BaseException):
    """The process ends here."""


CALLS = ((os, "rename"), (os, "unlink"), (os, "fsync"), (durable, "rename_exclusively"))


def cut_off(patch: pytest.MonkeyPatch, step: int, after: bool) -> None:
    """Ends whatever runs at its step of that number, before or after it is done."""
    left = [step]

    def cutting(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **settings: Any) -> Any:
            left[0] -= 1
            if left[0] == 0 and not after:
                raise Cut
            result = real(*args, **settings)
            if left[0] == 0:
                raise Cut
            return result

        return call

    for module, name in CALLS:
        patch.setattr(module, name, cutting(getattr(module, name)))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(1, 14))
def test_an_end_at_any_step_loses_and_repeats_nothing(tmp_path: Path, step: int, after: bool) -> None:
    """S1-13, S1-51: two files are prepared, two are committed; the next attempt commits what the checkpoint holds."""
    sinks, owed, recorded = [writer(tmp_path, index=index) for index in range(2)], list[Any](), False
    try:
        with pytest.MonkeyPatch.context() as patch:
            cut_off(patch, step, after)
            for number, sink in enumerate(sinks):
                sink.write(batch(number))
                owed += sink.prepare(1)
            recorded = True
            commit(tmp_path, owed)
    except Cut:
        pass
    assert set(visible(tmp_path)) <= ({0, 1} if recorded else set())
    owed = owed if recorded else []
    commit(tmp_path, owed, token=2)
    clean(tmp_path, 2, *owed)
    assert visible(tmp_path) == ([0, 1] if recorded else [])
    assert all(name.startswith("part-") for name in names(tmp_path))


def test_a_folder_that_is_made_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a committed file could go with its folder when the machine loses power."""
    synced, real = set[int](), os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            synced.add(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    writer(tmp_path / "a" / "b")
    assert {tmp_path.stat().st_ino, (tmp_path / "a").stat().st_ino} <= synced
