"""Files of rows that stay in progress over checkpoints: resumed exactly, rolled by each limit, visible once."""

import errno
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from runtime.connectors.commit_log import CommitLog
from runtime.connectors.sinks import file_committer, row_files
from runtime.connectors.sinks.claims import Claim, Claims
from runtime.connectors.sinks.file_committer import FILES_IN_PROGRESS
from runtime.connectors.sinks.json_lines import JsonLinesSink
from runtime.core.job.ids import CheckpointId, Token
from runtime.core.snapshot.commit import permit_from_master
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected
from runtime.operators.sink import SinkOperator
from runtime.ports import OperatorContext
from runtime.state.list_state import OperatorList
from tests.example_counts import examples

JOB, UID = "7", "out"
NO_LIMITS: dict[str, Any] = {"max_bytes": 1 << 30, "roll_after_ms": None, "roll_after_idle_ms": None}


class Clock:
    now = 1_000

    def __call__(self) -> int:
        return self.now


class Lists:
    """The list states of a subtask."""

    def __init__(self, name: str, entries: Sequence[Any]) -> None:
        self.only = OperatorList(name, entries)

    def list_state(self, name: str) -> OperatorList:
        return self.only


@dataclass
class Subtask:
    """A subtask of a sink, as its host calls it."""

    operator: SinkOperator
    state: Lists
    token: int
    clock: Clock = field(default_factory=Clock)

    def write(self, batch: pa.RecordBatch) -> None:
        self.operator.process(0, batch, NO_OUTPUT)

    def snapshot(self, checkpoint: int) -> tuple[list[Any], list[Any]]:
        """Committables and entries."""
        self.operator.prepare_snapshot_pre_barrier(checkpoint, NO_OUTPUT)
        return list(self.operator.committables()), self.state.only.get()

    def complete(self, checkpoint: int) -> None:
        self.operator.checkpoint_completed(permit_from_master(JOB, Token(self.token), CheckpointId(checkpoint)))

    def fire_timers(self) -> None:
        due = self.operator.next_processing_timer()
        if due is not None and due <= self.clock.now:
            self.operator.on_processing_time(self.clock.now, NO_OUTPUT)

    def finish(self) -> None:
        self.operator.finish(NO_OUTPUT)


NO_OUTPUT: Any = None


def opened(
    sink: Any,
    entries: Sequence[Any] = (),
    *,
    token: int = 1,
    index: int = 0,
    clock: Any = None,
    list_state: str = FILES_IN_PROGRESS,
) -> Subtask:
    subtask = Subtask(SinkOperator(sink), Lists(list_state, entries), token, clock or Clock())
    state: Any = subtask.state
    context = OperatorContext(
        job=JOB, uid=UID, index=index, parallelism=1, max_parallelism=16, token=Token(token),
        state=state, now_ms=subtask.clock,
    )  # fmt: skip
    subtask.operator.open(context)
    return subtask


def rows(*numbers: int, day: str = "a") -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64()), "day": [day] * len(numbers)})


def numbers_in(path: Path) -> list[int]:
    return [json.loads(line)["n"] for line in path.read_bytes().splitlines()]


def first_number(data: bytes) -> int:
    return int(json.loads(data.splitlines()[0])["n"])


def visible(folder: Path) -> list[int]:
    return sorted(number for path in folder.rglob("part-*") for number in numbers_in(path))


def commit(sink: Any, committables: Sequence[Any], checkpoint: int = 1, token: int = 1) -> int:
    permit = permit_from_master(JOB, Token(token), CheckpointId(checkpoint))
    committer = sink.committer()
    count = committer.commit(permit, committables)
    committer.commit_epoch(permit, committables)
    return int(count)


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(".weir-*"))


# ---------------------------------------------------------------- resuming


@pytest.mark.parametrize("closed", [True, False])
def test_a_file_is_resumed_at_its_recorded_length(tmp_path: Path, closed: bool) -> None:
    """S1-52, S1-53: rows behind the recorded length and files of no checkpoint are gone; the rest is there once."""
    sink = JsonLinesSink(str(tmp_path), **NO_LIMITS)
    first = opened(sink)
    first.write(rows(1, 2))
    assert first.snapshot(1) == ([], first.state.only.get())
    first.write(rows(3))
    committables, entries = first.snapshot(2)
    assert committables == []
    first.write(rows(99))
    if closed:
        first.operator.close()
    second = opened(sink, entries, token=2)
    second.write(rows(4))
    second.finish()
    prepared, left = second.snapshot(3)
    assert left == []
    assert [each["rows"] for each in prepared] == [4]
    assert visible(tmp_path) == []
    assert commit(sink, prepared, 3, 2) == 1
    assert commit(sink, prepared, 3, 2) == 0
    assert visible(tmp_path) == [1, 2, 3, 4]
    assert sink.committer().clean(JOB, UID, Token(3), []) == 1, "the file of the first attempt"
    assert hidden(tmp_path) == []


def test_a_zombie_that_goes_on_does_not_reach_the_new_file(tmp_path: Path) -> None:
    """It appends, records, rolls and closes; the file of the new attempt is another inode."""
    sink = JsonLinesSink(str(tmp_path), **NO_LIMITS)
    zombie = opened(sink)
    zombie.write(rows(1))
    _, entries = zombie.snapshot(1)
    second = opened(sink, entries, token=2)
    zombie.write(rows(50))
    zombie.snapshot(2)
    zombie.finish()
    second.write(rows(2))
    zombie.operator.close()
    third = opened(sink, entries, token=3)  # the second had no checkpoint
    third.finish()
    commit(sink, third.snapshot(3)[0], 3, 3)
    assert visible(tmp_path) == [1]


def test_a_savepoint_is_restored_twice_and_into_another_folder(tmp_path: Path) -> None:
    former, output = JsonLinesSink(str(tmp_path / "a"), **NO_LIMITS), JsonLinesSink(str(tmp_path / "b"), **NO_LIMITS)
    first = opened(former)
    first.write(rows(1, 2))
    _, entries = first.snapshot(1)
    first.write(rows(3))
    first.snapshot(2)
    for token, sink in enumerate([output, former], 2):
        successor = opened(sink, entries, token=token)
        successor.write(rows(10 * token))
        successor.finish()
        commit(sink, successor.snapshot(3)[0], 3, token)
    assert visible(tmp_path / "b") == [1, 2, 20]
    assert visible(tmp_path / "a") == [1, 2, 30]


def restored(sink: Any, entries: Sequence[Any], token: int, *numbers: int) -> Subtask:
    """A run that restores `entries` and writes more rows, as another run after it does."""
    successor = opened(sink, entries, token=token)
    for number in numbers:
        successor.write(rows(number))
    return successor


def publish(run: Subtask, sink: Any, checkpoint: int) -> None:
    run.finish()
    commit(sink, run.snapshot(checkpoint)[0], checkpoint, run.token)


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_savepoint_restored_twice_shows_its_rows_once(tmp_path: Path, is_taken: bool) -> None:
    """S1-52: also if an attempt between has continued the file, and if a consumer has taken the visible file."""
    sink = JsonLinesSink(str(tmp_path), **NO_LIMITS)
    first = restored(sink, [], 1, 1, 2)
    _, savepoint = first.snapshot(1)
    first.write(rows(3))
    _, later = first.snapshot(2)
    second = restored(sink, later, 2, 4)
    _, last = second.snapshot(3)
    publish(restored(sink, last, 3, 5), sink, 4)
    assert visible(tmp_path) == [1, 2, 3, 4, 5]
    for path in tmp_path.glob("part-*") if is_taken else ():
        path.unlink()
    before = visible(tmp_path)
    for token in (4, 5):
        sink.committer().clean(JOB, UID, Token(token), [*savepoint, *later])
        publish(restored(sink, savepoint, token, 10 * token), sink, 5)
    assert visible(tmp_path) == sorted([*before, 40, 50])
    sink.committer().clean(JOB, UID, Token(6), [{"parts": [1]}])  # of a sink of another kind
    assert not any((tmp_path / ".claims").iterdir())
    assert hidden(tmp_path) == []


def test_a_checkpoint_whose_rows_are_visible_in_part_is_refused(tmp_path: Path) -> None:
    """A restore of an earlier savepoint has published its rows; the later rows of the file are in no visible file."""
    sink, other = (JsonLinesSink(str(tmp_path / name), **NO_LIMITS) for name in "ab")
    first = restored(sink, [], 1, 1)
    _, savepoint = first.snapshot(1)
    first.write(rows(2))
    _, later = first.snapshot(2)
    first.finish()
    rolled, _ = first.snapshot(3)
    publish(restored(sink, savepoint, 2, 3), sink, 3)
    with pytest.raises(JobRejected, match=r"part-7-2-out-0-3-1~1.jsonl has the first 18 of 36 bytes .* another folder"):
        opened(sink, later, token=3)
    with pytest.raises(JobRejected, match=r"part-7-1-out-0-3-1~1.jsonl cannot be committed.* visible in part-7-2-"):
        commit(sink, rolled, 3)
    assert visible(tmp_path / "a") == [1, 3]
    publish(restored(other, later, 3), other, 3)
    assert visible(tmp_path / "b") == [1, 2]


def test_a_copy_of_a_file_that_a_zombie_has_committed_is_refused(tmp_path: Path) -> None:
    """The claim of the zombie is released by then; the commit log names its file. A new restore leaves the rows out."""
    sink = JsonLinesSink(str(tmp_path), **NO_LIMITS)
    zombie = restored(sink, [], 1, 1)
    _, savepoint = zombie.snapshot(1)
    second = restored(sink, savepoint, 2, 2)
    publish(zombie, sink, 2)
    with pytest.raises(JobRejected, match=r"visible in the file that was begun as .weir-7-1-out-0-1.inprogress"):
        publish(second, sink, 3)
    publish(restored(sink, savepoint, 3, 3), sink, 4)
    assert visible(tmp_path) == [1, 3]


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("at", ["rename", "log"])
def test_a_commit_that_ends_after_its_claim_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copied: bool, at: str
) -> None:
    """S1-51: before the next attempt, also if it restores an older savepoint. Until then no attempt copies the rows."""
    sink = JsonLinesSink(str(tmp_path), **NO_LIMITS)
    first = restored(sink, [], 1, 1)
    _, savepoint = first.snapshot(1)
    dying = restored(sink, savepoint, 2, 2) if copied else first

    def die(*arguments: Any) -> None:
        raise EnvironmentFailure("killed")

    with monkeypatch.context() as patch:
        place: Any = file_committer if at == "rename" else CommitLog
        patch.setattr(place, "rename_without_replacing" if at == "rename" else "add", die)
        with pytest.raises(EnvironmentFailure, match="killed"):
            publish(dying, sink, 2)
    if at == "rename":
        with pytest.raises(EnvironmentFailure, match="another attempt is committing"):
            opened(sink, savepoint, token=3)
    sink.committer().clean(JOB, UID, Token(4), savepoint)
    publish(restored(sink, savepoint, 4, 4), sink, 3)
    assert visible(tmp_path) == [1, *([2] if copied else []), 4]
    assert [file.rows for epoch in CommitLog(tmp_path).epochs(JOB, UID) for file in epoch.files] == [1 + copied, 1]


@pytest.mark.parametrize("killed", [False, True])
def test_a_zombie_that_claims_after_the_clean_up_takes_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """S1-11: its file is gone by then, so a claim of it would hide the rows for ever."""
    sink = JsonLinesSink(str(tmp_path), **NO_LIMITS)
    first = restored(sink, [], 1, 1)
    _, savepoint = first.snapshot(1)
    zombie = restored(sink, savepoint, 2, 2)
    acquire = Claims.acquire

    def clean_before(claims: Claims, origin: str, claim: Claim) -> Claim:
        sink.committer().clean(JOB, UID, Token(3), savepoint)
        result = acquire(claims, origin, claim)
        if killed:
            raise KeyboardInterrupt
        return result

    with monkeypatch.context() as patch:
        patch.setattr(Claims, "acquire", clean_before)
        with pytest.raises(KeyboardInterrupt if killed else EnvironmentFailure):
            publish(zombie, sink, 2)
    if killed:
        sink.committer().clean(JOB, UID, Token(4), savepoint)
    publish(restored(sink, savepoint, 4, 4), sink, 3)
    assert visible(tmp_path) == [1, 4]


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_file_that_a_later_checkpoint_committed_is_not_continued(tmp_path: Path, is_taken: bool) -> None:
    """Its rows are visible, or were until a consumer took them: the commit log knows."""
    sink = JsonLinesSink(str(tmp_path), partition_by=("day",), **NO_LIMITS)
    first = opened(sink)
    first.write(rows(1))
    _, entries = first.snapshot(1)
    first.write(rows(2))
    first.finish()
    commit(sink, first.snapshot(2)[0], 2)
    (path,) = tmp_path.rglob("part-*")
    if is_taken:
        path.unlink()
    second = opened(sink, entries, token=2)
    second.write(rows(2))
    second.finish()
    commit(sink, second.snapshot(3)[0], 3, 2)
    assert visible(tmp_path) == ([2] if is_taken else [1, 2, 2]), "rows after the older checkpoint are repeated"


def test_a_lost_file_is_named(tmp_path: Path) -> None:
    sink = JsonLinesSink(str(tmp_path), **NO_LIMITS)
    first = opened(sink)
    first.write(rows(1))
    _, entries = first.snapshot(1)
    (path,) = tmp_path.glob(".weir-*")
    assert sink.committer().missing(entries) == []
    os.truncate(path, 3)
    assert sink.committer().missing(entries) == [str(path)]
    with pytest.raises(EnvironmentFailure, match=r"-1\.inprogress: .* has 3 bytes; the checkpoint recorded 18"):
        opened(sink, entries, token=2)
    path.unlink()
    with pytest.raises(EnvironmentFailure, match=r"-1\.inprogress: .* with 1 rows .* copy it from a backup"):
        opened(sink, entries, token=2)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden": "/etc/passwd"}, {"hidden": "../x"}, {"partition": ".."}, {"partition": "day=a/../.."}, {"bytes": -1},
        {"rows": "x"}, {"hidden": ".weir-7-1-out-0-1~2.pending"},
    ],
    ids=str,
)  # fmt: skip
def test_a_manifest_is_not_trusted(tmp_path: Path, change: dict[str, Any]) -> None:
    sink = JsonLinesSink(str(tmp_path), **NO_LIMITS)
    first = opened(sink)
    first.write(rows(1))
    ((_, (entry,))) = first.snapshot(1)
    with pytest.raises(JobRejected, match=r"file in progress|no sink has written"):
        opened(sink, [entry | change], token=2)


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    sink = JsonLinesSink(str(tmp_path / "out"), **NO_LIMITS)
    first = opened(sink)
    first.write(rows(1))
    _, entries = first.snapshot(1)
    (path,) = (tmp_path / "out").glob(".weir-*")
    (tmp_path / "secret").write_text("x" * 100)
    path.unlink()
    path.symlink_to(tmp_path / "secret")
    with pytest.raises(EnvironmentFailure, match="cannot be read"):
        opened(sink, entries, token=2)


def test_a_subtask_rolls_the_files_that_it_cannot_continue(tmp_path: Path) -> None:
    """After a rescale from 3 subtasks to 1, a single file of each partition is continued."""
    sink = JsonLinesSink(str(tmp_path), partition_by=("day",), **NO_LIMITS)
    entries = []
    for index in range(3):
        part = opened(sink, index=index)
        part.write(rows(index, day="a"))
        part.write(rows(10 + index, day="b"))
        entries += part.snapshot(1)[1]
    merged = opened(sink, entries, token=2)
    prepared, left = merged.snapshot(2)
    assert (len(prepared), len(left)) == (4, 2)
    merged.write(rows(5, day="a"))
    merged.finish()
    commit(sink, merged.snapshot(3)[0], 3, 2)
    assert visible(tmp_path) == [0, 1, 2, 5, 10, 11, 12]
    assert sorted(path.parent.name for path in tmp_path.rglob("part-*")) == ["day=a"] * 3 + ["day=b"] * 3


# ---------------------------------------------------------------- rolling


def test_files_are_rolled_before_they_exceed_the_size(tmp_path: Path) -> None:
    """S1-44: exactly, also within a batch; only a row that alone is larger gets a larger file."""
    sink = JsonLinesSink(str(tmp_path), max_bytes=100, roll_after_ms=None, roll_after_idle_ms=None)
    subtask = opened(sink)
    text = ["x" * (7 * number % 60) for number in range(200)] + ["y" * 300, "z"]
    subtask.write(pa.RecordBatch.from_pydict({"n": pa.array(range(202)), "text": text}))
    subtask.finish()
    commit(sink, subtask.snapshot(1)[0])
    files = sorted((path.read_bytes() for path in tmp_path.glob("part-*")), key=first_number)
    lines = [data.splitlines(keepends=True) for data in files]
    assert [json.loads(line)["n"] for each in lines for line in each] == list(range(202))
    assert [len(each) for each, data in zip(lines, files, strict=True) if len(data) > 100] == [1], "the long row"
    for data, following in zip(files, lines[1:], strict=False):
        assert len(data) + len(following[0]) > 100, "files are filled"


def test_files_are_rolled_by_age_and_without_new_rows(tmp_path: Path) -> None:
    """S1-45: also after a restore, which keeps both times."""
    sink = JsonLinesSink(str(tmp_path), partition_by=("day",), roll_after_ms=100, roll_after_idle_ms=30)
    subtask = opened(sink)
    assert subtask.operator.next_processing_timer() is None
    subtask.write(rows(1, day="a"))
    subtask.write(rows(2, day="b"))
    subtask.clock.now += 29
    subtask.write(rows(3, day="a"))
    subtask.fire_timers()
    assert subtask.operator.next_processing_timer() == 1_030
    prepared, entries = subtask.snapshot(1)
    assert (prepared, len(entries)) == ([], 2)
    successor = opened(sink, entries, token=2, clock=subtask.clock)
    successor.clock.now += 1
    successor.fire_timers()
    prepared, entries = successor.snapshot(2)
    assert [each["final"].split("/")[0] for each in prepared] == ["day=b"]
    while successor.clock.now < 1_099:
        successor.write(rows(4))
        successor.clock.now += 23
        successor.fire_timers()
    assert len(successor.snapshot(3)[1]) == 1, "new rows keep it open"
    successor.clock.now = 1_100
    successor.fire_timers()
    assert len(successor.snapshot(4)[1]) == 0, "until it is too old"


def test_a_checkpoint_rolls_all_files_if_wanted(tmp_path: Path) -> None:
    sink = JsonLinesSink(str(tmp_path), roll_on_checkpoint=True, **NO_LIMITS)
    subtask = opened(sink)
    subtask.write(rows(1))
    prepared, entries = subtask.snapshot(1)
    assert (len(prepared), entries) == (1, [])
    commit(sink, prepared)
    assert visible(tmp_path) == [1]
    assert subtask.snapshot(2)[0] == prepared, "not known to be committed"


def test_open_files_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files.FolderRowWriter, "max_open_files", 3)
    sink = JsonLinesSink(str(tmp_path), partition_by=("day",), **NO_LIMITS)
    subtask = opened(sink)
    for number in range(40):
        subtask.write(rows(number, day=str(number % 5)))
    prepared, entries = subtask.snapshot(1)
    assert len(entries) == 3
    successor = opened(sink, entries, token=2)
    successor.finish()
    commit(sink, prepared)
    commit(sink, successor.snapshot(2)[0], 2, 2)
    assert visible(tmp_path) == list(range(40))


@pytest.mark.parametrize("options", [
    {"path": ""}, {"partition_by": "day"}, {"max_bytes": 0}, {"roll_after_ms": 0}, {"roll_after_idle_ms": -1},
    {"max_bytes": None, "roll_after_ms": None, "roll_after_idle_ms": None},
])  # fmt: skip
def test_bad_options_are_refused(options: Any) -> None:
    with pytest.raises(JobRejected):
        JsonLinesSink(**{"path": "/out"} | options).check()


def test_a_full_disk_is_an_outage_that_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file stays, because checkpoint 1 names it."""
    subtask = opened(JsonLinesSink(str(tmp_path), **NO_LIMITS))
    subtask.write(rows(1))
    subtask.snapshot(1)
    (name,) = hidden(tmp_path)
    subtask.write(rows(2))

    def fsync(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(EnvironmentFailure, match=f"{name}: .*No space left"):
            subtask.snapshot(2)
    subtask.operator.close()
    assert hidden(tmp_path) == [name]


def test_empty_batches_make_no_file(tmp_path: Path) -> None:
    subtask = opened(JsonLinesSink(str(tmp_path)))
    subtask.write(rows())
    subtask.finish()
    assert subtask.snapshot(1) == ([], [])


def test_partition_columns_must_be_there(tmp_path: Path) -> None:
    sink = JsonLinesSink(str(tmp_path), partition_by=("hour",))
    with pytest.raises(DataRejected, match="no column 'hour'"):
        opened(sink).write(rows(1))
    with pytest.raises(JobRejected, match="no column 'hour'"):
        sink.check_columns(rows(1).schema)


# ---------------------------------------------------------------- any order of events


@dataclass
class Record:
    """A recorded checkpoint. `rows`: the rows before it, from the beginning of the job."""

    number: int
    rows: list[int]
    committables: list[Any]
    entries: list[Any]


class Resuming(RuleBasedStateMachine):
    """Rows are numbers. Each number is written once: a restore goes on with new numbers, as if the input had changed.

    A restore of an older checkpoint does not take back the rows that were committed since.
    """

    @initialize(parallelism=st.integers(1, 3))
    def begin(self, parallelism: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)
        self.sink = self.new_sink()
        self.clock = Clock()
        self.token = self.number = self.written = 0
        self.recorded: set[int] = set()  #: rows of any checkpoint
        self.retained = [Record(0, [], [], [])]
        self.zombies: list[Subtask] = []
        self.taken: list[int] = []
        self.subtasks: list[Subtask] = []
        self.restore(parallelism)

    def new_sink(self) -> Any:
        limits: dict[str, Any] = {"max_bytes": 300, "roll_after_ms": 200, "roll_after_idle_ms": 100}
        return JsonLinesSink(str(self.folder), partition_by=("day",), **limits)

    def restore(self, parallelism: int) -> None:
        self.token += 1
        last = self.retained[-1]
        commit(self.sink, last.committables, last.number, self.token)
        keep = [each for record in self.retained for each in (*record.committables, *record.entries)]
        self.sink.committer().clean(JOB, UID, Token(self.token), keep)
        shares = [last.entries[index::parallelism] for index in range(parallelism)]
        self.rows = list(last.rows)
        self.subtasks = []
        for index, share in enumerate(shares):
            self.subtasks.append(self.open(share, index))

    def open(self, share: Sequence[Any], index: int) -> Subtask:
        return opened(self.sink, share, token=self.token, index=index, clock=self.clock)

    def visible_rows(self) -> list[int]:
        return visible(self.folder)

    def numbers_in(self, path: Path) -> list[int]:
        return numbers_in(path)

    @rule(index=st.integers(0, 2), count=st.integers(1, 6), day=st.sampled_from("ab"))
    def write(self, index: int, count: int, day: str) -> None:
        numbers = list(range(self.written, self.written + count))
        self.written += count
        self.rows += numbers
        self.subtasks[index % len(self.subtasks)].write(rows(*numbers, day=day))

    @rule(passed=st.integers(1, 60))
    def pass_time(self, passed: int) -> None:
        self.clock.now += passed
        for subtask in self.subtasks:
            subtask.fire_timers()
        self.act_as_zombies(Subtask.fire_timers)

    def act_as_zombies(self, act: Callable[[Subtask], Any]) -> None:
        """A zombie whose files have been removed fails, and its host closes it."""
        for zombie in list(self.zombies):
            try:
                act(zombie)
            except (OSError, EnvironmentFailure):
                zombie.operator.close()
                self.zombies.remove(zombie)

    @rule(recorded=st.booleans(), notified=st.integers(0, 3))
    def checkpoint(self, recorded: bool, notified: int) -> None:
        self.number += 1
        snapshots = [subtask.snapshot(self.number) for subtask in self.subtasks]
        if not recorded:
            return
        committables, entries = ([each for snapshot in snapshots for each in snapshot[place]] for place in (0, 1))
        additions = [each for each in committables if each not in self.retained[-1].committables]
        assert self.sink.committer().missing([*additions, *entries]) == []
        self.retained = [*self.retained[-1:], Record(self.number, list(self.rows), committables, entries)]
        self.recorded |= set(self.rows)
        permit = permit_from_master(JOB, Token(self.token), CheckpointId(self.number))
        self.sink.committer().commit_epoch(permit, committables)
        for subtask in self.subtasks[:notified]:
            subtask.complete(self.number)

    @rule(parallelism=st.integers(1, 3), closed=st.booleans())
    def fail(self, parallelism: int, closed: bool) -> None:
        if closed:
            for subtask in self.subtasks:
                subtask.operator.close()
        else:
            for zombie in self.zombies:
                zombie.operator.close()
            self.zombies = self.subtasks
        self.restore(parallelism)

    @rule(parallelism=st.integers(1, 3), finishes=st.booleans())
    def go_back(self, parallelism: int, finishes: bool) -> None:
        """Another run restores the older checkpoint. It is refused if a part of its rows in progress is visible.

        Args:
            finishes: the run before has restored the same checkpoint, and has ended by itself.
        """
        if finishes:
            self.checkpoint(recorded=True, notified=0)
            self.fail(parallelism, closed=False)
            for subtask in self.subtasks:
                subtask.finish()
            self.checkpoint(recorded=True, notified=1)
        for subtask in self.subtasks:
            subtask.operator.close()
        self.retained.reverse()
        try:
            self.restore(parallelism)
        except JobRejected as error:
            if error.code != "rows-partly-visible":
                raise
            for subtask in self.subtasks:
                subtask.operator.close()
            self.retained.reverse()
            self.restore(parallelism)

    @rule(count=st.integers(1, 6), closes=st.booleans())
    def zombies_act(self, count: int, closes: bool) -> None:
        self.act_as_zombies(lambda zombie: zombie.write(rows(*range(1_000_000, 1_000_000 + count))))
        self.act_as_zombies(lambda zombie: zombie.snapshot(self.number + 1))
        if closes:
            self.act_as_zombies(lambda zombie: zombie.operator.close())
            self.zombies = []

    @rule()
    def take(self) -> None:
        """A consumer takes all visible files."""
        for path in self.folder.rglob("part-*"):
            self.taken += self.numbers_in(path)
            path.unlink()

    @invariant()
    def only_committed_rows_are_visible_once(self) -> None:
        if hasattr(self, "folder"):
            numbers = self.visible_rows() + self.taken
            assert len(set(numbers)) == len(numbers)
            assert self.recorded.issuperset(numbers)

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        for subtask in (*self.subtasks, *self.zombies):
            subtask.operator.close()
        self.restore(2)
        for subtask in self.subtasks:
            subtask.finish()
        self.checkpoint(recorded=True, notified=2)
        counts = Counter(self.visible_rows() + self.taken)
        assert set(counts.values()) <= {1}
        assert counts.keys() >= set(self.rows)
        self.sink.committer().clean(JOB, UID, Token(self.token + 1), [])
        assert hidden(self.folder) == []
        logged = [file.name for epoch in CommitLog(self.folder).epochs(JOB, UID) for file in epoch.files]
        assert len(set(logged)) == len(logged)
        for subtask in self.subtasks:
            subtask.operator.close()
        self._folder.cleanup()


@pytest.mark.hypothesis
def test_any_order_of_events_shows_each_row_once() -> None:
    """S1-06, S1-46, S1-52, S1-53: against counters of rows; rescales, zombies, aborted and unnotified checkpoints."""
    run_state_machine_as_test(
        Resuming, settings=settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
    )


# ---------------------------------------------------------------- JSON


def test_values_are_json_of_any_reader(tmp_path: Path) -> None:
    schema = pa.schema(
        [("t", pa.timestamp("us", "UTC")), ("d", pa.date32()), ("s", pa.string()), ("f", pa.float64()),
         ("l", pa.list_(pa.struct([("x", pa.int8())]))), ("m", pa.map_(pa.string(), pa.bool_())),
         ("b", pa.binary()), ("u", pa.dictionary(pa.int8(), pa.string())), ("q", pa.decimal128(9, 2))]
    )  # fmt: skip
    values = [
        {"t": 1_700_000_000_000_001, "d": 19_000, "s": 'a"\n\u2028é\\\x00', "f": float("nan"), "l": [{"x": 1}, None],
         "m": [("k", True)], "b": b"\xff\x00", "u": "x", "q": None},
        dict.fromkeys(schema.names),
    ]  # fmt: skip
    sink = JsonLinesSink(str(tmp_path))
    sink.check_columns(schema)
    subtask = opened(sink)
    subtask.write(pa.RecordBatch.from_pylist(values, schema))
    subtask.finish()
    commit(sink, subtask.snapshot(1)[0])
    (path,) = tmp_path.glob("part-*.jsonl")
    first, second = map(json.loads, path.read_text().split("\n")[:2])
    assert first == {
        "t": "2023-11-14T22:13:20.000001Z", "d": "2022-01-08", "s": 'a"\n\u2028é\\\x00', "f": None,
        "l": [{"x": 1}, None], "m": {"k": True}, "b": "/wA=", "u": "x", "q": None,
    }  # fmt: skip
    assert second == dict.fromkeys(schema.names)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(JobRejected, match="same name"):
        JsonLinesSink(str(tmp_path)).check_columns(pa.schema([("a", pa.int8()), ("a", pa.int8())]))
