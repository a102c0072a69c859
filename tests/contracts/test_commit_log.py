"""The commit log of an output folder: whole epochs, each once, whatever is repeated, cut off or mixed."""

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from runtime.connectors import commit_log
from runtime.connectors.commit_log import CommitLog, CommittedEpoch, LoggedFile
from runtime.connectors.sinks import file_committer
from runtime.connectors.sinks.file_committer import FileCommitter
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.ids import CheckpointId, Token
from runtime.core.snapshot.commit import CommitPermit
from runtime.errors import CorruptState, EnvironmentFailure, JobRejected
from tests.contracts.test_sinks import batch, clean, commit, names, visible, writer

#: Where a process dies: what it calls, and at which call.
CUTS: dict[str, tuple[Any, str, int]] = {
    "commit": (FileCommitter, "commit", 1),
    "mark": (file_committer, "sync_path", 1),
    "rename": (file_committer, "rename_without_replacing", 1),
    "entry": (commit_log, "rename_without_replacing", 1),
}


def epoch(folder: Path, committables: Any, *, checkpoint: int, token: int = 1, job: str = "7") -> None:
    permit = CommitPermit(job, Token(token), CheckpointId(checkpoint), Token(token))
    ParquetSink(str(folder)).committer().commit_epoch(permit, committables)


def logged(folder: Path, sink: str = "out", job: str = "7") -> list[tuple[int, int, list[str]]]:
    """Number, checkpoint and files of each epoch."""
    epochs = CommitLog(folder).epochs(job, sink)
    return [(epoch.number, epoch.checkpoint, [file.name for file in epoch.files]) for epoch in epochs]


def prepared(folder: Path, checkpoint: int, *rows: int, **owner: Any) -> list[Any]:
    sink = writer(folder, **owner)
    sink.write(batch(*rows))
    return list(sink.prepare(checkpoint))


def test_an_epoch_holds_the_files_of_all_subtasks(tmp_path: Path) -> None:
    committables = prepared(tmp_path, 5, 1, 2, index=0) + prepared(tmp_path, 5, 3, index=1)
    epoch(tmp_path, committables, checkpoint=5)
    assert logged(tmp_path) == [(1, 5, ["part-7-1-out-0-5-1.parquet", "part-7-1-out-1-5-1.parquet"])]
    assert visible(tmp_path) == [1, 2, 3]
    (entry,) = CommitLog(tmp_path).epochs("7", "out", [1])
    assert entry.rows == 3
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")} == entry.file_names


def test_files_of_an_older_writer_follow_those_of_a_newer_one(tmp_path: Path) -> None:
    """A kept slot writes beside a slot of a newer attempt: the order is that of the checkpoints, and no restore."""
    epoch(tmp_path, prepared(tmp_path, 6, 1, token=2), checkpoint=6, token=2)
    older = prepared(tmp_path, 7, 2, token=1, index=1)
    epoch(tmp_path, older, checkpoint=7, token=2)
    (entry,) = CommitLog(tmp_path).epochs("7", "out", [2])
    assert entry.highest == (2, 7)
    assert visible(tmp_path) == [1, 2]


def test_repeats_by_anybody_add_nothing(tmp_path: Path) -> None:
    """A slot that commits later, the same master again, the master of the next attempt."""
    first = prepared(tmp_path, 1, 1)
    epoch(tmp_path, first, checkpoint=1)
    commit(tmp_path, first)
    epoch(tmp_path, first, checkpoint=1)
    epoch(tmp_path, first, checkpoint=1, token=2)
    assert [number for number, _, _ in logged(tmp_path)] == [1]


def test_what_a_later_checkpoint_still_names_is_not_logged_again(tmp_path: Path) -> None:
    """A subtask carries its file until it hears of the commit, and one whose checkpoint failed, to the next one."""
    sink, carried = writer(tmp_path), list[Any]()
    for checkpoint in (1, 2, 3, 4):
        sink.write(batch(checkpoint))
        carried += sink.prepare(checkpoint)
        if checkpoint != 2:
            epoch(tmp_path, carried, checkpoint=checkpoint)
    assert [(number, checkpoint, len(files)) for number, checkpoint, files in logged(tmp_path)] == [
        (1, 1, 1),
        (2, 3, 2),
        (3, 4, 1),
    ]


def test_a_checkpoint_without_rows_has_no_epoch(tmp_path: Path) -> None:
    epoch(tmp_path, [], checkpoint=1)
    assert not CommitLog(tmp_path).exists


def test_readers_of_parquet_folders_and_shells_do_not_see_the_log(tmp_path: Path) -> None:
    epoch(tmp_path, prepared(tmp_path, 1, 1), checkpoint=1)
    assert visible(tmp_path) == [1]
    assert [path.name for path in tmp_path.glob("*") if not path.name.startswith(".")] == ["part-7-1-out-0-1-1.parquet"]


# ---------------------------------------------------------------- restores


def test_an_epoch_that_a_crash_cut_off_is_logged_by_the_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the record of the checkpoint, before or inside of the commit, before the entry, before its rename."""
    for number, cut in enumerate(CUTS):
        folder = tmp_path / str(number)
        files = prepared(folder, 1, 1, index=0) + prepared(folder, 1, 2, index=1)
        with monkeypatch.context() as patch:
            place, name, call = CUTS[cut]
            _die_at(patch, place, name, call)
            with pytest.raises(KeyboardInterrupt):
                epoch(folder, files, checkpoint=1)
        assert logged(folder) == []
        epoch(folder, files, checkpoint=1, token=2)
        clean(folder, 2)
        assert [(number, len(files)) for number, _, files in logged(folder)] == [(1, 2)]
        assert not list((folder / commit_log.LOG_FOLDER).glob(".*.tmp"))


def _die_at(patch: pytest.MonkeyPatch, place: Any, name: str, call: int) -> None:
    left, real = [call], getattr(place, name)

    def dying(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return real(*arguments)

    patch.setattr(place, name, dying)


def test_output_of_a_savepoint_that_was_disowned_is_logged_when_it_is_restored(tmp_path: Path) -> None:
    """Its checkpoint is older than the newest epoch, so all entries are compared."""
    disowned = prepared(tmp_path, 5, 5, token=1)
    epoch(tmp_path, prepared(tmp_path, 6, 6, token=2), checkpoint=6, token=2)
    epoch(tmp_path, disowned, checkpoint=5, token=3)
    epoch(tmp_path, disowned, checkpoint=5, token=4)
    assert [(number, checkpoint) for number, checkpoint, _ in logged(tmp_path)] == [(1, 6), (2, 5)]


def test_a_late_commit_of_an_older_master_adds_nothing(tmp_path: Path) -> None:
    old = prepared(tmp_path, 1, 1, token=1)
    epoch(tmp_path, old, checkpoint=1, token=2)
    epoch(tmp_path, prepared(tmp_path, 2, 2, token=2), checkpoint=2, token=2)
    epoch(tmp_path, old, checkpoint=1, token=1)
    assert [number for number, _, _ in logged(tmp_path)] == [1, 2]


def test_two_masters_at_once_give_one_epoch(tmp_path: Path) -> None:
    for round_ in range(5):
        files = prepared(tmp_path, round_, round_, token=round_ + 1)
        threads = [
            threading.Thread(target=epoch, args=(tmp_path, files), kwargs={"checkpoint": round_}) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [number for number, _, _ in logged(tmp_path)] == [1, 2, 3, 4, 5]


# ---------------------------------------------------------------- mixed folders


def test_two_sinks_of_a_job_in_one_folder_have_a_log_each(tmp_path: Path) -> None:
    for checkpoint in (1, 2):
        epoch(tmp_path, prepared(tmp_path, checkpoint, 1, token=checkpoint, uid="a-b"), checkpoint=checkpoint)
    epoch(tmp_path, prepared(tmp_path, 2, 2, uid="c"), checkpoint=2)
    assert CommitLog(tmp_path).sinks() == [("7", "a~2Db"), ("7", "c")]
    assert [len(logged(tmp_path, sink)) for sink in ("a~2Db", "c")] == [2, 1]


def test_another_folder_has_a_log_of_its_own_with_what_was_owed_there(tmp_path: Path) -> None:
    """A savepoint restored into it: what the former folder has committed is in the former log only."""
    committables, owed = prepared(tmp_path / "blue", 1, 1), prepared(tmp_path / "blue", 1, 2, index=1)
    epoch(tmp_path / "blue", committables, checkpoint=1)
    epoch(tmp_path / "green", [*committables, *owed], checkpoint=1, token=2)
    assert logged(tmp_path / "green") == [(1, 1, [owed[0]["final"]])]
    blue, green = (CommitLog(tmp_path / name).epochs("7", "out")[0].log for name in ("blue", "green"))
    assert blue != green
    epoch(tmp_path / "third", committables, checkpoint=1, token=2)
    assert not (tmp_path / "third").exists()


class StaleLog(CommitLog):
    """The log of a master that was stopped after it had read the last delivery."""

    def delivered_epoch(self, job: str, sink: str) -> int:
        return 0


def two_epochs(folder: Path) -> CommitLog:
    for checkpoint in (1, 2):
        epoch(folder, prepared(folder, checkpoint, checkpoint), checkpoint=checkpoint)
    return CommitLog(folder)


def test_a_master_that_goes_on_late_takes_no_delivery_back(tmp_path: Path) -> None:
    """Else the next master would look for the files of a delivered epoch for ever."""
    log = two_epochs(tmp_path)
    log.release("7", "out", 2)
    StaleLog(tmp_path).release("7", "out", 1)
    assert (log.delivered_epoch("7", "out"), log.backlog("7", "out")) == (2, [])


def test_delivered_epochs_go_and_none_of_their_files_comes_again(tmp_path: Path) -> None:
    sink, carried = writer(tmp_path), list[Any]()
    for checkpoint in (1, 2):
        sink.write(batch(checkpoint))
        carried += sink.prepare(checkpoint)
        epoch(tmp_path, carried, checkpoint=checkpoint)
    log = CommitLog(tmp_path)
    assert log.backlog("7", "out") == [1, 2]
    for _ in range(2):
        log.release("7", "out", 1)
        assert (log.numbers("7", "out"), log.backlog("7", "out"), visible(tmp_path)) == ([2], [2], [2])
    log.release("7", "out", 2)
    log.release("7", "out", 1)
    assert (log.numbers("7", "out"), log.delivered_epoch("7", "out"), visible(tmp_path)) == ([2], 2, [])
    epoch(tmp_path, carried, checkpoint=3)
    assert log.backlog("7", "out") == []
    sink.write(batch(3))
    epoch(tmp_path, [*carried, *sink.prepare(4)], checkpoint=4)
    assert (log.backlog("7", "out"), visible(tmp_path)) == ([3], [3])
    epoch(tmp_path, carried, checkpoint=2, token=2)
    assert log.backlog("7", "out") == [3], "the restore of an older checkpoint delivers nothing again"


# ---------------------------------------------------------------- damage


def test_damage_and_other_formats_are_named(tmp_path: Path) -> None:
    epoch(tmp_path, prepared(tmp_path, 1, 1), checkpoint=1)
    entry = tmp_path / commit_log.LOG_FOLDER / "7-out-1.json"
    content = entry.read_bytes()
    for damaged in (
        b"",
        content[:-1],
        content.replace(b'"number":1', b'"number":2'),
        content.replace(b"part-7", b"../../x"),
    ):
        entry.write_bytes(damaged)
        with pytest.raises(CorruptState, match=r"7-out-1\.json"):
            CommitLog(tmp_path).epochs("7", "out")
    entry.write_bytes(json.dumps(json.loads(content) | {"format": 2}).encode())
    with pytest.raises(JobRejected, match="has format 2") as error:
        CommitLog(tmp_path).epochs("7", "out")
    assert error.value.code == "other-format"


def test_a_log_that_cannot_be_written_fails_the_commit(tmp_path: Path) -> None:
    files = prepared(tmp_path, 1, 1)
    (tmp_path / commit_log.LOG_FOLDER).write_text("a file")
    with pytest.raises((JobRejected, EnvironmentFailure), match=r"\.commit-log"):
        epoch(tmp_path, files, checkpoint=1)
    shutil.move(tmp_path / commit_log.LOG_FOLDER, tmp_path / "aside")
    epoch(tmp_path, files, checkpoint=1)
    assert [number for number, _, _ in logged(tmp_path)] == [1]


def test_a_log_outside_of_the_data_roots_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = prepared(tmp_path / "out", 1, 1)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / commit_log.LOG_FOLDER).symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("WEIR_DATA_ROOTS", str(tmp_path / "out"))
    with pytest.raises(JobRejected, match="not a folder that jobs may use"):
        epoch(tmp_path / "out", files, checkpoint=1)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_an_entry_reads_as_it_was_written(tmp_path: Path) -> None:
    written = CommittedEpoch(
        log="x", job="7", sink="out", number=3, token=2, checkpoint=9, highest=(2, 9),
        files=(LoggedFile("part-7-2-out-0-9-1.parquet", 10, 4),), carried=("part-7-2-out-0-8-1.parquet",),
    )  # fmt: skip
    log = CommitLog(tmp_path)
    assert log.append_epoch(written)
    assert not log.append_epoch(written)
    assert log.epochs("7", "out") == [written]
    assert names(tmp_path) == [commit_log.LOG_FOLDER]
