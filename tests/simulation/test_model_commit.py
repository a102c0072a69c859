"""A model of two-phase commit against the real Parquet sink on a real folder: what is visible is what the model says.

Attempts crash, zombies go on, commits are cut off and repeated, checkpoints fail. Rows are read again from the last
recorded checkpoint, as a source would; each must be visible once at the end.
"""

import contextlib
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from runtime.connectors.commit_log import CommitLog, CommittedEpoch
from runtime.connectors.sinks import file_committer
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.ids import CheckpointId, Token
from runtime.core.snapshot.commit import permit_from_master
from runtime.errors import EnvironmentFailure
from runtime.ports import OperatorContext, SinkWriter
from runtime.state.backend import SubtaskState
from tests.example_counts import examples

JOB, SUBTASKS = "7", 2
CUTS = {"mark": "sync_path", "rename": "rename_without_replacing"}
subtasks = st.integers(0, SUBTASKS - 1)
chances = st.integers(0, 100)


class Cut(BaseException):
    """The process ends here."""


@dataclass
class Writing:
    """One sink subtask of one attempt."""

    writer: SinkWriter
    position: int  #: of the next row to read
    prepared: list[Any] = field(default_factory=list)  #: and not known to be committed, oldest first
    rows: list[int] = field(default_factory=list)  #: since the last barrier


@dataclass
class Recorded:
    """What a completed checkpoint holds, by subtask."""

    number: int
    positions: list[int]
    committables: list[list[Any]]

    @property
    def owed(self) -> list[Any]:
        return [committable for one in self.committables for committable in one]


@dataclass
class Attempt:
    token: Token
    restored: Recorded
    last: Recorded  #: the newest that it knows to be recorded
    retained: list[Any]  #: what the manifests owed that it knew when it began
    writers: list[Writing] = field(default_factory=list)


class TwoPhaseCommit(RuleBasedStateMachine):
    """Rows are numbers: subtask, and place in its input."""

    @initialize()
    def begin(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.folder = Path(self._folder.name)
        self.sink = ParquetSink(str(self.folder))
        self.visible: Counter[int] = Counter()
        self.rows_of: dict[str, list[int]] = {}  #: by the name that a file will have
        self.shown: set[str] = set()
        self.taken: Counter[int] = Counter()
        self.taken_names: set[str] = set()
        self.number = 0
        self.last = Recorded(0, [0] * SUBTASKS, [[]] * SUBTASKS)
        self.savepoints: list[Recorded] = []
        self.zombies: list[Attempt] = []
        self.attempt = self.new_attempt(Token(1))

    def teardown(self) -> None:
        if hasattr(self, "attempt"):
            self.restart(closed=True)
            expected = Counter(row for i, end in enumerate(self.last.positions) for row in rows(i, 0, end))
            assert self.files() == expected, "every row up to the last checkpoint, once"
            self._folder.cleanup()

    # ------------------------------------------------------------ the life of an attempt

    @rule(subtask=subtasks, count=st.integers(1, 4))
    def write(self, subtask: int, count: int) -> None:
        self.write_with(self.attempt, subtask, count)

    @rule(fails=st.booleans())
    def checkpoint(self, fails: bool) -> None:
        """A failed one undoes nothing: what was prepared rides with the next."""
        taken = self.prepare_all(self.attempt)
        if not fails:
            self.last = self.attempt.last = taken

    @rule()
    def savepoint(self) -> None:
        """It notifies nobody; what it owes is committed when it is restored, or by a later checkpoint."""
        self.savepoints.append(self.prepare_all(self.attempt))

    @rule(subtask=subtasks)
    def hear_of_completion(self, subtask: int) -> None:
        self.commit_with(self.attempt, subtask)

    @rule(closed=st.booleans())
    def restart(self, closed: bool) -> None:
        """All writers are closed in order, or none is: then they were killed, or go on as zombies."""
        if closed:
            for writing in self.attempt.writers:
                writing.writer.close()
        else:
            self.zombies.append(self.attempt)
        token = Token(self.attempt.token + 1)
        self.show(token, self.last.number, self.last.owed)
        self.sink.committer().clean(JOB, "out", token, self.retained())
        self.attempt = self.new_attempt(token)

    @rule(cut=chances)
    def crash_in_the_middle_of_committing(self, cut: int) -> None:
        """Whoever restores commits some of what is owed, and is gone."""
        owed = self.last.owed
        self.show(Token(self.attempt.token + 1), self.last.number, owed[: cut % (len(owed) + 1)])
        self.restart(closed=True)

    @rule(step=st.sampled_from(["mark", "rename"]), cut=st.integers(1, 4))
    def crash_inside_of_a_commit(self, step: str, cut: int) -> None:
        """Between any two acts on the folder: marks are made, and some files are renamed."""
        left, real = [cut], getattr(file_committer, CUTS[step])

        def cutting(*paths: Path) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise Cut
            real(*paths)

        with mock.patch.object(file_committer, CUTS[step], cutting), contextlib.suppress(Cut):
            permit = permit_from_master(JOB, Token(self.attempt.token + 1), CheckpointId(self.last.number))
            self.sink.committer().commit(permit, self.last.owed)
        for committable in self.last.owed:
            if (self.folder / committable["final"]).exists() and committable["final"] not in self.shown:
                self.shown.add(committable["final"])
                self.visible.update(self.rows_of[committable["final"]])

    # ------------------------------------------------------------ a consumer

    @rule(which=chances)
    def a_consumer_takes_a_file(self, which: int) -> None:
        visible = sorted(path for path in self.folder.glob("part-*"))
        if visible:
            path = visible[which % len(visible)]
            self.taken += Counter(pq.read_table(path)["n"].to_pylist())
            self.taken_names.add(path.name)
            path.unlink()

    @rule()
    def a_consumer_takes_all_that_a_shell_finds(self) -> None:
        for path in [path for path in self.folder.iterdir() if not path.name.startswith(".")]:
            if path.suffix == ".parquet":
                self.taken += Counter(pq.read_table(path)["n"].to_pylist())
            self.taken_names.add(path.name)
            path.unlink()

    # ------------------------------------------------------------ zombies

    @precondition(lambda self: self.zombies)
    @rule(which=chances, subtask=subtasks, count=st.integers(1, 3))
    def a_zombie_writes(self, which: int, subtask: int, count: int) -> None:
        self.write_with(self.zombie(which), subtask, count)

    @precondition(lambda self: self.zombies)
    @rule(which=chances)
    def a_zombie_prepares(self, which: int) -> None:
        """Its checkpoint is never recorded: it has an older token."""
        zombie = self.zombie(which)
        try:
            self.prepare_all(zombie)
        except FileNotFoundError:  # what it was writing has been cleaned away
            self.zombies.remove(zombie)

    @precondition(lambda self: self.zombies)
    @rule(which=chances, subtask=subtasks)
    def a_zombie_commits(self, which: int, subtask: int) -> None:
        """It hears late of a checkpoint that was recorded while it was the one."""
        self.commit_with(self.zombie(which), subtask)

    @precondition(lambda self: self.zombies)
    @rule(which=chances)
    def a_zombie_cleans(self, which: int) -> None:
        zombie = self.zombie(which)
        self.sink.committer().clean(JOB, "out", zombie.token, zombie.retained)

    # ------------------------------------------------------------ the law

    @invariant()
    def what_is_visible_is_what_was_committed(self) -> None:
        if hasattr(self, "attempt"):
            assert self.files() == self.visible

    @invariant()
    def what_a_retained_manifest_owes_can_be_committed(self) -> None:
        there = self.taken_names | {path.name for path in self.folder.iterdir()} if hasattr(self, "attempt") else set()
        for committable in self.retained() if hasattr(self, "attempt") else ():
            assert committable["pending"] in there or committable["final"] in there

    # ------------------------------------------------------------ means

    def retained(self) -> list[Any]:
        return [committable for recorded in (self.last, *self.savepoints) for committable in recorded.owed]

    def new_attempt(self, token: Token) -> Attempt:
        attempt = Attempt(token, self.last, self.last, self.retained())
        for index in range(SUBTASKS):
            writer = self.sink.writer()
            writer.open(context(token, index))
            attempt.writers.append(Writing(writer, self.last.positions[index]))
        return attempt

    def zombie(self, which: int) -> Attempt:
        return self.zombies[which % len(self.zombies)]

    def write_with(self, attempt: Attempt, subtask: int, count: int) -> None:
        writing = attempt.writers[subtask]
        read = rows(subtask, writing.position, writing.position + count)
        writing.writer.write(pa.record_batch({"n": read}))
        writing.position += count
        writing.rows += read

    def prepare_all(self, attempt: Attempt) -> Recorded:
        self.number += 1
        for writing in attempt.writers:
            for committable in writing.writer.prepare(self.number):
                self.rows_of[committable["final"]] = writing.rows
                writing.prepared.append(committable)
            writing.rows = []
        positions = [writing.position for writing in attempt.writers]
        return Recorded(self.number, positions, [list(writing.prepared) for writing in attempt.writers])

    def commit_with(self, attempt: Attempt, subtask: int) -> None:
        if attempt.last is attempt.restored:
            return
        committed = attempt.last.committables[subtask]
        self.show(attempt.token, attempt.last.number, committed)
        writing = attempt.writers[subtask]
        writing.prepared = [committable for committable in writing.prepared if committable not in committed]

    def show(self, token: Token, number: int, committables: list[Any]) -> None:
        newly = {committable["final"] for committable in committables} - self.shown
        permit = permit_from_master(JOB, token, CheckpointId(number))
        assert self.sink.committer().commit(permit, committables) == len(newly)
        self.shown |= newly
        self.visible.update(row for name in newly for row in self.rows_of[name])

    def files(self) -> Counter[int]:
        """Every visible row, and every one that a consumer has taken."""
        found = [path for path in self.folder.iterdir() if path.name[0] not in "._"]
        return self.taken + Counter(row for path in found for row in pq.read_table(path)["n"].to_pylist())


class TwoPhaseCommitWithLog(TwoPhaseCommit):
    """The master commits each recorded checkpoint as a whole before any subtask hears of it, or dies instead."""

    @rule(fails=st.booleans(), dies=st.sampled_from([False, False, True]))
    def checkpoint(self, fails: bool, dies: bool = False) -> None:
        super().checkpoint(fails)
        if not fails and not dies:
            self.show(self.attempt.token, self.last.number, self.last.owed)
        elif not fails:
            self.restart(closed=False)

    @rule(which=chances)
    def a_savepoint_is_restored(self, which: int) -> None:
        """Perhaps one that an older attempt took, and whose output was never committed. Rows after it come again."""
        mine = [one for one in self.savepoints if one.positions == self.last.positions]
        if mine:
            self.last = mine[which % len(mine)]
            self.restart(closed=True)

    @precondition(lambda self: self.zombies)
    @rule(which=chances)
    def a_zombie_commits_an_epoch(self, which: int) -> None:
        zombie = self.zombie(which)
        if zombie.last is not zombie.restored:
            with contextlib.suppress(EnvironmentFailure):  # its marks have been cleaned, and a consumer has its files
                permit = permit_from_master(JOB, zombie.token, CheckpointId(zombie.last.number))
                self.sink.committer().commit_epoch(permit, zombie.last.owed)

    def show(self, token: Token, number: int, committables: list[Any]) -> None:
        super().show(token, number, committables)
        whole = [one for one in (self.last, *self.savepoints) if one.number == number and one.owed == committables]
        if whole:
            permit = permit_from_master(JOB, token, CheckpointId(number))
            self.sink.committer().commit_epoch(permit, committables)

    @invariant()
    def every_file_is_in_one_epoch_at_most(self) -> None:
        if hasattr(self, "attempt"):
            found = [file.name for epoch in self.epochs() for file in epoch.files]
            assert len(found) == len(set(found))
            assert set(found) <= self.shown, "an epoch names what is visible"

    def teardown(self) -> None:
        if hasattr(self, "attempt"):
            self.restart(closed=True)
            found = {file.name for epoch in self.epochs() for file in epoch.files}
            assert self.shown - self.taken_names <= found, "every visible file is in an epoch"
            numbers = [epoch.number for epoch in self.epochs()]
            assert numbers == list(range(len(numbers))), "numbered without gaps"
        super().teardown()

    def epochs(self) -> list[CommittedEpoch]:
        return CommitLog(self.folder).epochs(JOB, "out")


def rows(subtask: int, start: int, stop: int) -> list[int]:
    return [10_000 * subtask + place for place in range(start, stop)]


def context(token: Token, index: int) -> OperatorContext:
    return OperatorContext(
        job=JOB,
        uid="out",
        index=index,
        parallelism=SUBTASKS,
        max_parallelism=8,
        token=token,
        state=SubtaskState(range(8), 8, None),
        now_ms=lambda: 0,
    )


@pytest.mark.hypothesis
@pytest.mark.parametrize(("machine", "count"), [(TwoPhaseCommit, 40), (TwoPhaseCommitWithLog, 30)])
def test_the_parquet_sink_shows_what_a_model_of_two_phase_commit_says(
    machine: type[RuleBasedStateMachine], count: int
) -> None:
    """S1-49: whatever crashes, is repeated or wakes up late."""
    chosen = settings(max_examples=examples(count), stateful_step_count=40, deadline=None, derandomize=True)
    run_state_machine_as_test(machine, settings=chosen)
