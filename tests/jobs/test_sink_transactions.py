"""Transactions of live sinks: what each checkpoint prepares and commits, and the states of the files of a folder."""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir
from runtime.core.attempt.events import OperationRequest
from runtime.core.job.settings import CoordinatorSettings
from runtime.io.memory.run_store import MemoryRunStore
from runtime.run_store import CompletedCheckpoint
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Gated
from tests.jobs.live import PATIENCE_S, Run
from tests.jobs.numbers import Numbers
from tests.jobs.test_files_in_progress import values_in
from tests.jobs.test_own_sink import LinesCommitter, LinesSink, LinesWriter, visible
from tests.shared import Shared
from tests.waiting import until

TWO_AT_ONCE = CoordinatorSettings(interval_ms=None, min_pause_ms=0, max_concurrent=2)


@dataclass(eq=False)
class Ledger(Shared):
    """The calls of the subtasks of a sink, as (hook, subtask, checkpoint, details)."""

    calls: list[tuple[str, int, int, Any]] = field(default_factory=list)
    recorded: Any = field(default=lambda: ())  #: of the test: the recorded checkpoints

    def add(self, hook: str, index: int, checkpoint: int, detail: Any) -> None:
        seen = tuple(self.recorded()) if hook == "commit" else ()
        self.calls.append((hook, index, checkpoint, (detail, seen)))

    def of(self, hook: str) -> list[tuple[int, int, Any, Sequence[int]]]:
        return [(index, number, *detail) for kind, index, number, detail in list(self.calls) if kind == hook]


@dataclass(frozen=True)
class RecordedSink(LinesSink):
    """`LinesSink` whose calls are recorded."""

    ledger: Ledger = field(default_factory=Ledger)

    def writer(self) -> LinesWriter:
        return _Writer(self.folder, self.ledger)

    def committer(self) -> LinesCommitter:
        return _Committer(self.folder, self.ledger)


class _Writer(LinesWriter):
    def __init__(self, folder: Path, ledger: Ledger) -> None:
        super().__init__(folder)
        self._ledger = ledger

    def open(self, context: weir.spi.OperatorContext) -> None:
        super().open(context)
        self._index = context.index

    def write(self, batch: pa.RecordBatch) -> None:
        super().write(batch)
        self._ledger.add("write", self._index, 0, batch.num_rows)

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        prepared = super().prepare(checkpoint)
        self._ledger.add("prepare", self._index, checkpoint, prepared)
        return prepared


class _Committer(LinesCommitter):
    def __init__(self, folder: Path, ledger: Ledger) -> None:
        super().__init__(folder)
        self._ledger = ledger

    def commit(self, permit: weir.spi.CommitPermit, committables: Sequence[Any]) -> int:
        count = super().commit(permit, committables)
        self._ledger.add("commit", -1, int(permit.checkpoint), tuple(committables))
        return count


class Late(MemoryRunStore):
    """Records the first checkpoint of a pair once the sinks have prepared the second."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger, self.pairs = ledger, set[int]()

    def record_checkpoint(self, completed: CompletedCheckpoint) -> bool:
        number = completed.manifest.checkpoint
        if number in self.pairs:
            until(lambda: sum(n == number + 1 for _, n, _, _ in self._ledger.of("prepare")) == 2, PATIENCE_S)
        return super().record_checkpoint(completed)


@dataclass(frozen=True)
class Transactions:
    run: Run
    ledger: Ledger
    folder: Path
    empty: int  #: the checkpoint without rows
    pair: int  #: the first of two overlapping checkpoints that both have rows
    hidden: tuple[int, int]  #: rows of the folder before the first checkpoint: written, and visible
    files: list[str]  #: of the Parquet sink, after the empty checkpoint

    def names(self, checkpoint: int) -> list[str]:
        return [name for _, n, prepared, _ in self.ledger.of("prepare") if n == checkpoint for name in prepared]


def ask(run: Run, *names: str) -> None:
    run.records.operations += [OperationRequest(name, "checkpoint") for name in names]
    run.master.poke()
    run.wait_for(lambda: all(name in run.records.settled for name in names))


@pytest.fixture(scope="module")
def transactions(tmp_path_factory: pytest.TempPathFactory, jobs: Jobs) -> Iterator[Transactions]:
    folder, source, ledger = tmp_path_factory.mktemp("transactions"), Gated(total=30), Ledger()
    flow = weir.Dataflow("transactions")
    rows = flow.source("numbers", source).map_batches("same", lambda batch: batch)
    rows.sink("out", RecordedSink(folder / "lines", ledger))
    rows.sink("files", weir.ParquetSink(str(folder / "files")))
    records = Late(ledger)
    ledger.recorded = lambda: [completed.manifest.checkpoint for completed in records.completed]
    with jobs.running(flow.compile(2), folder / "state", records, settings=TWO_AT_ONCE) as run:
        run.wait_for(lambda: _written(ledger) == 120)
        hidden = 120, len(visible(folder / "lines"))
        ask(run, "first")
        empty = run.manifests[-1].checkpoint + 1
        ask(run, "empty")
        files = sorted(path.name for path in (folder / "files").glob(f"*-{empty}-*"))
        pair, stop = 0, threading.Event()
        feeder = threading.Thread(target=_feed, args=(source, stop))
        feeder.start()
        try:
            for _ in range(50):
                number = run.manifests[-1].checkpoint + 1
                records.pairs.add(number)
                ask(run, f"one-{number}", f"two-{number}")
                prepared = Counter(n for _, n, names, _ in ledger.of("prepare") if names)
                if prepared[number] and prepared[number + 1]:
                    pair = number
                    break
        finally:
            stop.set()
            feeder.join()
        run.wait_for(lambda: _written(ledger) == 4 * source.total)
        run.end("drain")
        yield Transactions(run, ledger, folder, empty, pair, hidden, files)


def _written(ledger: Ledger) -> int:
    return sum(rows for _, _, rows, _ in ledger.of("write"))


def _feed(source: Gated, stop: threading.Event) -> None:
    while not stop.wait(0.002):
        source.total += 1


def test_a_transaction_begins_with_the_first_row_behind_a_barrier(transactions: Transactions) -> None:
    """S1-36: a checkpoint without rows has none, neither of the author's sink nor of files."""
    assert transactions.names(transactions.empty) == []
    assert transactions.files == []
    manifest = next(m for m in transactions.run.manifests if m.checkpoint == transactions.empty)
    assert not any(s.committables for uid in ("out", "files") for s in manifest.operators[uid].subtasks.values())


def test_rows_behind_a_barrier_go_into_the_next_transaction(transactions: Transactions) -> None:
    """S1-37: what has been prepared does not change any more."""
    written, expected = Counter[int](), defaultdict[str, int](int)
    for hook, index, _, (detail, _) in transactions.ledger.calls:
        if hook == "write":
            written[index] += detail
        elif hook == "prepare":
            for name in detail:
                expected[name] = written[index]
            written[index] = 0
    folder = transactions.folder / "lines"
    assert {name: len((folder / name).read_text().splitlines()) for name in expected} == expected
    rows = sum(expected.values())
    assert rows == len(visible(folder)) == 4 * max(row["value"] + 1 for row in visible(folder))


def test_each_completion_commits_exactly_the_transactions_of_its_checkpoint(transactions: Transactions) -> None:
    """S1-32, S1-38, S1-46, S1-47: once it is recorded, and not those of a later checkpoint that is prepared already."""
    assert transactions.hidden == (120, 0)
    commits = transactions.ledger.of("commit")
    assert commits
    for _, number, names, recorded in commits:
        assert number in recorded
        assert all(name.endswith(f"-{number}") for name in names)
    by_number = defaultdict[int, set[str]](set)
    for _, number, names, _ in commits:
        by_number[number] |= set(names)
    for number in {m.checkpoint for m in transactions.run.manifests}:
        assert by_number.get(number, set()) == set(transactions.names(number))
    calls = [(hook, number) for hook, _, number, _ in transactions.ledger.calls]
    pair = transactions.pair
    assert calls.index(("prepare", pair + 1)) < calls.index(("commit", pair)), "the two overlap"


# ---------------------------------------------------------------- files


@dataclass
class Watcher:
    """Reads each visible file when it first sees it, over and over, in a thread of the test."""

    folder: Path
    first: dict[str, bytes] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Watcher":
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.0005):
            for path in list(self.folder.rglob("*")) if self.folder.exists() else []:
                if path.name.startswith((".", "_")):
                    self.hidden.add(path.name)
                elif path.suffix and path.name not in self.first and path.is_file():
                    self.first[path.name] = path.read_bytes()


LIMIT = 1_500


@pytest.mark.parametrize("partition_by", [(), ("key",)])
def test_files_are_rolled_by_size_in_each_partition(tmp_path: Path, jobs: Jobs, partition_by: tuple[str, ...]) -> None:
    """S1-41, S1-42, S1-44, S1-48: rolled files stay hidden until their checkpoint, and then appear whole."""
    out, source = tmp_path / "out", Numbers(total=400, keys=2)
    flow = weir.Dataflow("rolled")
    sink = weir.JsonLinesSink(
        str(out), max_bytes=LIMIT, roll_after_ms=3_600_000, roll_after_idle_ms=None, partition_by=partition_by
    )
    flow.source("numbers", source).sink("out", sink)
    with Watcher(out) as watcher:
        jobs.run_to_end(flow.compile(2), tmp_path / "state")
    paths = [path for path in out.rglob("part-*") if path.is_file()]
    sizes = [path.stat().st_size for path in paths]
    assert max(sizes) <= LIMIT
    assert sum(size > LIMIT // 2 for size in sizes) > len(sizes) * 3 // 4, "and not much smaller"
    values = Counter(value for path in paths for value in values_in(path))
    assert values == Counter(dict.fromkeys(range(source.total), source.splits))
    if partition_by:
        assert {path.parent.name for path in paths} == {"key=0", "key=1"}
    assert len(watcher.first) > len(paths) // 2
    assert all(content == next(out.rglob(name)).read_bytes() for name, content in watcher.first.items())
    assert [name for name in watcher.hidden if name.endswith(".pending") or "weir-rolled" in name]
    assert not list(out.rglob(".weir-rolled-*")), "nothing is left in another state"
