"""Whole jobs with state that has no key: lists, unions and broadcast rules over rescales, and while subtasks finish."""

import os
import threading
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode, RunState
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.core.snapshot.manifest import FinishedState, Manifest
from runtime.dataflow.builder import Dataflow
from runtime.io.memory.run_store import MemoryRunStore
from runtime.operators.functions.function import RowCollector
from runtime.operators.functions.process import BroadcastProcessFunction, ProcessFunction, SubtaskContext
from runtime.ports import OperatorContext, SinkWriter
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Gated
from tests.jobs.live import Run
from tests.jobs.numbers import SCHEMA, Numbers, NumbersReader, committed
from tests.shared import Shared

UNION = FailureReason.UNION_STATE_PARTLY_FINISHED


class Gate(Shared):
    """Shut until the test opens it."""

    def __init__(self) -> None:
        self._open = False

    def open(self) -> None:
        self._open = True

    def is_open(self) -> bool:
        return self._open


@dataclass(frozen=True)
class Uneven(Numbers):
    """All subtasks but the last end with their rows; the last goes on until the gate is open."""

    gate: Gate = field(default_factory=Gate)

    def reader(self) -> "UnevenReader":
        return UnevenReader(self)


class UnevenReader(NumbersReader):
    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._last = context.index == context.parallelism - 1

    @property
    def exhausted(self) -> bool:
        source = self._source
        assert isinstance(source, Uneven)
        return super().exhausted and (not self._last or source.gate.is_open())


@dataclass
class Opened:
    """What a subtask found when it was opened."""

    index: int
    parallelism: int
    restored: bool
    seen: list[Any]
    parts: list[Any]
    rules: dict[Any, Any]


@dataclass(eq=False)
class Tally(Shared):
    """Makes functions that pass rows on, count them in a list, tell of themselves in a union, and keep the rules."""

    union: bool = True
    stamps: bool = False  #: each subtask adds its index to the rules, so that the copies differ
    opened: list[Opened] = field(default_factory=list)
    told: list[int] = field(default_factory=list)  #: every rule that a subtask heard of

    def __call__(self) -> BroadcastProcessFunction:
        return _Tally(self)

    def on_open(self, opened: Opened) -> None:
        self.opened.append(opened)

    def on_rule(self, value: int) -> None:
        self.told.append(value)


class _Tally(BroadcastProcessFunction):
    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def open(self, context: SubtaskContext) -> None:
        self._index, self._rules = context.index, context.broadcast_map("rules")
        self._seen = context.list_state("seen")
        self._parts = context.union_list_state("parts") if self._tally.union else None
        parts = self._parts.get() if self._parts is not None else []
        self._rows = sum(self._seen.get())
        opening = Opened(
            context.index, context.parallelism, context.restored, self._seen.get(), parts, dict(self._rules.items())
        )
        self._tally.on_open(opening)
        if self._tally.stamps:
            self._rules[STAMP] = self._index

    def process(self, row: dict[str, Any], context: SubtaskContext, out: RowCollector) -> None:
        self._rows += 1
        out.emit(row)

    def process_broadcast(self, row: dict[str, Any], context: SubtaskContext, out: RowCollector) -> None:
        self._rules[row["value"]] = row["key"]
        self._tally.on_rule(row["value"])

    def snapshot(self, checkpoint: int) -> None:
        self._seen.replace([self._rows])
        if self._parts is not None:
            self._parts.replace([f"part {self._index}"])


RULES = Numbers(total=5, splits=1)
STAMP = -1
KNOWN = {value: value * 31 % 7 for value in range(5)}


def job(rows: Any, rules: Any, tally: Tally, output: Path) -> Dataflow:
    flow = Dataflow("tally")
    rule_stream = flow.source("rules", rules)
    flow.source("rows", rows).connect_broadcast("tally", rule_stream, tally, SCHEMA).sink(
        "out", ParquetSink(str(output))
    )
    return flow


def written(output: Path) -> int:
    return len(committed(output))


def snapshots_of(manifest: Manifest, uid: str = "tally") -> list[Any]:
    return [snapshot for _, snapshot in sorted(manifest.operators[uid].subtasks.items())]


def given_up(run: Run) -> int:
    return sum(report.reason is UNION for report in run.records.reports)


# ---------------------------------------------------------------- rescales


def test_a_plain_rescale_loses_nothing_of_any_kind(tmp_path: Path, jobs: Jobs) -> None:
    """S0-61, S1-16, S3-27, S3-33, S3-34, S4-49: 2 subtasks, then 3, then 1, with lists, unions and rules."""
    output, storage, savepoint = tmp_path / "out", tmp_path / "state", ""
    before: list[Any] = []
    for number, parallelism in enumerate((2, 3, 1), start=1):
        tally, rules = Tally(), Gated(total=5, splits=1)
        records = MemoryRunStore(token=Token(number), restore_from=savepoint or None)
        with jobs.running(
            job(Gated(total=20 * number), rules, tally, output).compile(parallelism),
            storage,
            records,
        ) as run:
            run.wait_for(lambda number=number: written(output) == 80 * number)  # type: ignore[misc]
            if number == 1:
                run.wait_for(lambda numbers=tally.told: len(numbers) == 5 * 2)  # type: ignore[misc]
            savepoint = run.end("stop")
            assert given_up(run) == 0
            manifest = run.manifests[-1]
        assert sorted(o.index for o in tally.opened) == list(range(parallelism))
        assert {o.parallelism for o in tally.opened} == {parallelism}
        assert [o.restored for o in tally.opened] == [number > 1] * parallelism
        if number > 1:
            assert sum(sum(o.seen) for o in tally.opened) == 80 * (number - 1)
            assert all(o.rules == KNOWN for o in tally.opened)
            assert all(o.parts == before for o in tally.opened)
        before = [f"part {index}" for index in range(parallelism)]
        assert sum(snapshot.lists["seen"][0] for snapshot in snapshots_of(manifest)) == 80 * number


@pytest.mark.parametrize("parallelism", [2, 3, 4])
def test_every_subtask_handles_records_after_a_rescale(tmp_path: Path, parallelism: int, jobs: Jobs) -> None:
    """S3-26: new ones get their part of old and new keys."""
    output, storage, source = tmp_path / "out", tmp_path / "state", Gated(total=50, keys=200)

    def flow() -> Dataflow:
        dataflow = Dataflow("counts")
        numbers = dataflow.source("numbers", source).key_by("key")
        numbers.batches("each", lambda batch: batch, max_rows=1_000, max_wait_ms=0).sink(
            "out", ParquetSink(str(output))
        )
        return dataflow

    with jobs.running(flow().compile(1), storage) as run:
        run.wait_for(lambda: written(output) == 200)
        savepoint = run.end("stop")
    source.total = 100
    with jobs.running(
        flow().compile(parallelism), storage, MemoryRunStore(token=Token(2), restore_from=savepoint)
    ) as run:
        run.wait_for(lambda: written(output) == 400)
        run.wait_for(lambda: _busy(run, "each") == list(range(parallelism)))
        run.end("stop")


def _busy(run: Run, uid: str) -> list[int]:
    return sorted(subtask["index"] for subtask in run.operator(uid).get("subtasks", []) if subtask["records_in"])


# ---------------------------------------------------------------- while some subtasks have finished


def test_a_union_list_suspends_checkpoints_while_its_operator_is_partly_finished(tmp_path: Path, jobs: Jobs) -> None:
    """S0-59, S0-60, S3-29: given up with that reason while one subtask lives; then the job ends with everything."""
    source, output = Uneven(total=20), tmp_path / "out"
    with jobs.running(job(source, RULES, Tally(), output).compile(2), tmp_path / "state") as run:
        run.wait_for(lambda: given_up(run) >= 2)
        source.gate.open()
        run.join()
    assert run.records.state is RunState.FINISHED
    for manifest in run.manifests:
        assert manifest.operators["tally"].finished is not FinishedState.PARTLY
        assert [snapshot.unions["parts"] for snapshot in snapshots_of(manifest)] == [("part 0",), ("part 1",)]
    assert run.manifests[-1].operators["tally"].finished is FinishedState.FINISHED
    assert written(output) == 80


@pytest.mark.parametrize(("kind", "succeeds"), [("savepoint", False), ("drain", True)])
def test_what_a_person_asks_for_while_a_union_is_partly_finished(
    tmp_path: Path, kind: str, succeeds: bool, jobs: Jobs
) -> None:
    """S0-60: a savepoint fails and says why; a drain lets all subtasks finish, so it succeeds."""
    with jobs.running(job(Uneven(total=20), RULES, Tally(), tmp_path / "out").compile(2), tmp_path / "state") as run:
        run.wait_for(lambda: given_up(run) >= 1)
        run.ask(kind)
        run.wait_for(lambda: kind in run.records.settled)
        result, error = run.records.settled[kind]
        assert (result is not None) is succeeds
        assert succeeds or (error is not None and UNION in str(error))


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_rules_and_lists_of_what_still_runs_are_assigned_anew(tmp_path: Path, parallelism: int, jobs: Jobs) -> None:
    """S0-17, S0-51, S0-55, S0-56, S0-57, S0-58: subtask 0 has finished; all hold the rules of the other."""
    source, output, storage = Uneven(total=20), tmp_path / "out", tmp_path / "state"
    compiled = job(source, RULES, Tally(union=False, stamps=True), output).compile(2)
    with jobs.running(compiled, storage) as run:
        run.wait_for(lambda: written(output) == 80 and _partly(run))
        run.checkpoints(2)
        partly = next(c for c in reversed(run.records.completed) if _is_partly(c.manifest))
    first, second = snapshots_of(partly.manifest)
    assert (first.finished, second.finished) == (True, False)
    tally, records = Tally(union=False), MemoryRunStore(token=Token(2), restore_from=partly.folder)
    source.gate.open()
    jobs.run_to_end(job(source, RULES, tally, output).compile(parallelism), storage, records)
    assert records.state is RunState.FINISHED
    assert all(o.rules == KNOWN | {STAMP: 1} for o in tally.opened)
    assert len(tally.opened) == parallelism
    assert [value for o in tally.opened for value in o.seen] == list(second.lists["seen"])
    assert written(output) == 80


def _is_partly(manifest: Manifest) -> bool:
    return manifest.operators["tally"].finished is FinishedState.PARTLY


def _partly(run: Run) -> bool:
    return any(_is_partly(manifest) for manifest in run.manifests)


# ---------------------------------------------------------------- timers


class Threads(Shared):
    """The threads of slots that called a function, as (process, thread)."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, int]] = set()

    def add(self, process: int, thread: int) -> None:
        self.seen.add((process, thread))


class Echo(ProcessFunction):
    """Gives each row out after a while, by a timer; many of them."""

    WAIT_MS = 20

    def __init__(self, threads: Threads) -> None:
        self._threads = threads

    def open(self, context: SubtaskContext) -> None:
        self._stored = context.list_state("rows")
        self._rows: list[dict[str, Any]] = self._stored.get()

    def process(self, row: dict[str, Any], context: SubtaskContext, out: RowCollector) -> None:
        self._rows.append(row)
        context.register_processing_timer(context.now_ms() + self.WAIT_MS + len(self._rows))

    def on_timer(self, timestamp_ms: int, context: SubtaskContext, out: RowCollector) -> None:
        self._threads.add(os.getpid(), threading.get_ident())
        rows, self._rows = self._rows, []
        for row in rows:
            out.emit(row)

    def snapshot(self, checkpoint: int) -> None:
        self._threads.add(os.getpid(), threading.get_ident())
        self._stored.replace(self._rows)


def test_timers_need_no_key_and_no_thread(tmp_path: Path, jobs: Jobs) -> None:
    """S3-35, S3-36, S3-38: a hundred of them, on the thread of the slot's loop; the source is silent by then."""
    threads = Threads()
    flow = Dataflow("echo")
    echoed = flow.source("numbers", Gated(total=50)).process("echo", lambda: Echo(threads), SCHEMA)
    echoed.sink("out", ParquetSink(str(tmp_path / "out")))
    with jobs.running(flow.compile(1), tmp_path / "state") as run:
        run.wait_for(lambda: written(tmp_path / "out") == 200)
        run.end("stop")
    assert len(threads.seen) == 1


def test_timers_fire_after_a_restore_although_no_row_comes(tmp_path: Path, jobs: Jobs) -> None:
    """S3-35, S3-37: those that were set before the stop."""

    class Slow(Echo):
        WAIT_MS = 300

    output, storage, source, threads = tmp_path / "out", tmp_path / "state", Gated(total=5), Threads()

    def flow() -> Dataflow:
        dataflow = Dataflow("echo")
        echoed = dataflow.source("numbers", source).process("echo", lambda: Slow(threads), SCHEMA)
        echoed.sink("out", ParquetSink(str(output)))
        return dataflow

    with jobs.running(flow().compile(2), storage) as run:
        run.wait_for(lambda: run.operator("echo").get("records_in", 0) == 20)
        savepoint = run.end("stop")
    with jobs.running(flow().compile(1), storage, MemoryRunStore(token=Token(2), restore_from=savepoint)) as run:
        run.wait_for(lambda: written(output) == 20)
        run.end("stop")


# ---------------------------------------------------------------- values that no manifest can hold


class _Keeps(ProcessFunction):
    """Stores a value in a list state at each snapshot."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def open(self, context: SubtaskContext) -> None:
        self._seen = context.list_state("seen")

    def process(self, row: dict[str, Any], context: SubtaskContext, out: RowCollector) -> None:
        out.emit(row)

    def snapshot(self, checkpoint: int) -> None:
        self._seen.replace([self._value])


@pytest.mark.parametrize("value", [2**70, "\ud800"], ids=["int", "surrogate"])
def test_a_value_of_list_state_that_no_manifest_holds_names_operator_and_state(
    tmp_path: Path, value: Any, jobs: Jobs
) -> None:
    flow = Dataflow("kept")
    rows = flow.source("rows", Gated(total=20))
    rows.process("keep", partial(_Keeps, value), SCHEMA).sink("out", ParquetSink(str(tmp_path / "out")))
    with jobs.running(flow.compile(1), tmp_path / "state") as run:
        assert run.join() is MasterExitCode.DONE
        failure = str(run.records.failure)
    assert all(name in failure for name in ("keep", "seen", "64 bits" if value == 2**70 else "surrogate")), failure


class _Prepares(ParquetSink):
    """A sink whose committables hold `value`."""

    def __init__(self, path: str, value: Any) -> None:
        super().__init__(path)
        self._value = value

    def writer(self) -> SinkWriter:
        return _Preparing(super().writer(), self._value)


class _Preparing(SinkWriter):
    def __init__(self, writer: SinkWriter, value: Any) -> None:
        self._writer, self._value = writer, value

    def open(self, context: OperatorContext) -> None:
        self._writer.open(context)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write(batch)

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        return tuple({**each, "mark": self._value} for each in self._writer.prepare(checkpoint))

    def close(self) -> None:
        self._writer.close()


@pytest.mark.parametrize("value", [2**70, "\ud800", {1, 2}, (1, 2)], ids=["int", "surrogate", "set", "tuple"])
def test_a_committable_that_no_manifest_holds_names_the_sink(tmp_path: Path, value: Any, jobs: Jobs) -> None:
    flow = Dataflow("kept")
    flow.source("rows", Gated(total=20)).sink("out", _Prepares(str(tmp_path / "out"), value))
    with jobs.running(flow.compile(1), tmp_path / "state") as run:
        assert run.join() is MasterExitCode.DONE
        failure = str(run.records.failure)
    assert "'out'" in failure, failure
    assert "committables: " in failure, failure
