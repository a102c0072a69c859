"""Micro-batches without keys: the author's own routing, and rows that wait in a union list, where each picks its own.

It is what an author writes who cannot use `key_by(..).batches`, and what it costs.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import weir
from runtime.core.job.lifecycle import RunState
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.core.snapshot.manifest import FinishedState
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Bomb, Gated
from tests.jobs.live import FAST, Run, running
from tests.jobs.numbers import SCHEMA, Numbers, committed
from tests.jobs.test_held_rows import found, keys_rise, rows_of
from tests.jobs.test_subtask_state import Uneven
from tests.shared import Shared


def route(rows: pa.RecordBatch, targets: int) -> npt.NDArray[np.int64]:
    """An odd rule, for records and for state alike."""
    keys: npt.NDArray[np.int64] = rows["key"].to_numpy()
    return (keys**2 + 1) % targets


@dataclass(eq=False)
class Bulk(Shared):
    """Makes functions that give rows out `max_rows` at a time, or when the first has waited."""

    max_rows: int
    max_wait_ms: int = 600_000
    restored_rows: dict[int, list[dict[str, Any]]] = field(default_factory=dict)  #: when a subtask was opened
    sizes: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)  #: every row that a subtask was given
    restored: set[bool] = field(default_factory=set)

    def __call__(self) -> weir.ProcessFunction:
        return _Bulk(self, self.max_rows, self.max_wait_ms)

    def on_open(self, index: int, rows: list[dict[str, Any]], restored: bool) -> None:
        self.restored_rows[index] = rows
        self.restored.add(restored)

    def on_row(self, value: int) -> None:
        self.values.append(value)

    def on_batch(self, size: int) -> None:
        self.sizes.append(size)


class _Bulk(weir.ProcessFunction):
    def __init__(self, bulk: Bulk, max_rows: int, max_wait_ms: int) -> None:
        self._bulk, self._max_rows, self._max_wait_ms = bulk, max_rows, max_wait_ms

    def open(self, context: weir.SubtaskContext) -> None:
        self._stored = context.union_list_state("rows")
        everything = self._stored.get()
        homes = route(pa.RecordBatch.from_pylist(everything, SCHEMA), context.parallelism)
        self._rows = [row for row, home in zip(everything, homes, strict=True) if home == context.index]
        self._bulk.on_open(context.index, list(self._rows), context.restored)

    def start(self, context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        self._give_out(context, out)

    def process(self, row: dict[str, Any], context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        self._rows.append(row)
        self._bulk.on_row(row["value"])
        self._give_out(context, out)

    def on_timer(self, timestamp_ms: int, context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        self._leave(len(self._rows), out)

    def finish(self, context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        self._leave(len(self._rows), out)

    def snapshot(self, checkpoint: int) -> None:
        self._stored.replace(self._rows)

    def _give_out(self, context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        while len(self._rows) >= self._max_rows:
            self._leave(self._max_rows, out)
        if self._rows:
            context.register_processing_timer(context.now_ms() + self._max_wait_ms)

    def _leave(self, count: int, out: weir.RowCollector) -> None:
        leaving, self._rows = self._rows[:count], self._rows[count:]
        self._bulk.on_batch(len(leaving))
        for row in leaving:
            out.emit(row)


def batched(source: Any, output: Path, bulk: Bulk, bomb: Any = None) -> weir.Dataflow:
    flow = weir.Dataflow("batched")
    numbers = flow.source("numbers", source)
    numbers = numbers if bomb is None else numbers.map_batches("bomb", bomb)
    numbers.partition_custom(route, "key").process("bulk", bulk, SCHEMA).sink("out", weir.ParquetSink(str(output)))
    return flow


def test_waiting_rows_go_where_the_new_rows_of_their_key_go(tmp_path: Path, jobs: Jobs) -> None:
    """S3-13, S3-28, S3-30, S3-31, S3-32, S3-33, S3-39: 2 subtasks, 3, then 1; each row is taken by one of them."""
    output, storage, savepoint = tmp_path / "out", tmp_path / "state", ""
    for number, parallelism in enumerate((2, 3), start=1):
        bulk, records = Bulk(1_000), weir.MemoryRunStore(token=weir.spi.Token(number), restore_from=savepoint or None)
        source = Gated(total=30 * number, splits=1)
        with jobs.running(batched(source, output, bulk).compile(parallelism), storage, records) as run:
            run.wait_for(lambda bulk=bulk: len(bulk.values) == 30)  # type: ignore[misc]
            run.checkpoints(2)
            savepoint = run.end("stop")
        entries = [entry for s in run.manifests[-1].operators["bulk"].subtasks.values() for entry in s.unions["rows"]]
        assert sorted((row["key"], row["value"]) for row in entries) == rows_of(source.numbers)
        assert bulk.restored == {number > 1}
        assert sum(map(len, bulk.restored_rows.values())) == 30 * (number - 1)
        for index, rows in bulk.restored_rows.items():
            assert all((row["key"] ** 2 + 1) % parallelism == index for row in rows)
    assert committed(output) == []
    bulk, records = Bulk(8), weir.MemoryRunStore(token=weir.spi.Token(3), restore_from=savepoint)
    last = Numbers(total=90, splits=1)
    jobs.run_to_end(batched(last, output, bulk).compile(1), storage, records)
    assert len(bulk.restored_rows[0]) == 60
    assert bulk.sizes == [8] * 11 + [2]
    assert found(output) == rows_of(last)
    assert keys_rise(committed(output))


def test_restored_rows_leave_although_the_source_is_silent(tmp_path: Path, jobs: Jobs) -> None:
    """S3-35, S3-37, S3-38: by a timer at another parallelism."""
    output, storage, source = tmp_path / "out", tmp_path / "state", Gated(total=20, splits=1)
    bulk = Bulk(1_000)
    with jobs.running(batched(source, output, bulk).compile(1), storage) as run:
        run.wait_for(lambda: len(bulk.values) == 20)
        savepoint = run.end("stop")
    records = weir.MemoryRunStore(token=weir.spi.Token(2), restore_from=savepoint)
    with jobs.running(batched(source, output, Bulk(1_000, max_wait_ms=20)).compile(2), storage, records) as run:
        run.wait_for(lambda: found(output) == rows_of(source.numbers))
        run.end("stop")


def test_waiting_rows_survive_a_crash(tmp_path: Path, jobs: Jobs) -> None:
    """S3-17, S3-28."""
    output, bomb, bulk = tmp_path / "out", Bomb(), Bulk(40)
    source = Gated(total=30)
    job = batched(source, output, bulk, bomb).compile(2)
    with jobs.running(job, tmp_path / "state", restart=weir.FixedDelay(attempts=3, delay_ms=10)) as run:
        run.wait_for(lambda: len(bulk.values) == 120)
        run.checkpoints(2)
        bomb.arm()
        source.total = 60
        rows = rows_of(source.numbers)
        homes = Counter((key**2 + 1) % 2 for key, _ in rows)
        full = sum(count - count % bulk.max_rows for count in homes.values())
        run.wait_for(lambda: len(found(output)) == full)
        assert any(bulk.restored_rows.values()), "nothing was restored"
        run.end("drain")
    assert full < len(rows)
    assert found(output) == rows


@pytest.mark.parametrize("dealt", [False, True])
def test_what_a_union_list_costs_at_the_end_of_bounded_input(tmp_path: Path, dealt: bool) -> None:
    """S3-29: on a forward edge checkpoints are given up while one subtask goes on. Behind a partitioner nobody ends
    before all sources have, so there the price is not due."""
    source, output, bulk = Uneven(total=20), tmp_path / "out", Bulk(1)
    flow = weir.Dataflow("end")
    numbers = flow.source("numbers", source)
    numbers = numbers.partition_custom(route, "key") if dealt else numbers
    numbers.process("bulk", bulk, SCHEMA).sink("out", weir.ParquetSink(str(output)))
    with running(flow.compile(2), tmp_path / "state") as run:
        run.wait_for(lambda: _one_goes_on(run, "numbers"))
        if dealt:
            run.checkpoints(2)
        else:
            run.wait_for(lambda: _given_up(run) >= 2)
        source.gate.open()
        run.join()
    assert run.records.state is RunState.FINISHED
    assert (_given_up(run) == 0) is dealt
    partly = [m.operators["numbers"].finished is FinishedState.PARTLY for m in run.manifests]
    assert any(partly) is dealt
    assert found(output) == rows_of(Numbers(total=20))


def _one_goes_on(run: Run, uid: str) -> bool:
    states = [subtask["state"] for subtask in run.operator(uid).get("subtasks", [])]
    return len(states) == 2 and states.count("running") == 1


def _given_up(run: Run) -> int:
    reasons = Counter(report.reason for report in run.records.reports)
    return reasons[FailureReason.UNION_STATE_PARTLY_FINISHED]


def test_a_rule_that_names_no_subtask_fails_the_job_by_the_name_of_the_operator(tmp_path: Path) -> None:
    """S3-30."""
    flow = weir.Dataflow("wrong")
    numbers = flow.source("numbers", Numbers(total=10)).partition_custom(lambda rows, targets: rows["key"], "key")
    numbers.map_batches("next", lambda batch: batch).sink("out", weir.ParquetSink(str(tmp_path / "out")))
    never = weir.FixedDelay(attempts=0, delay_ms=0)
    with pytest.raises(weir.WeirError, match=r"partitioner before operator 'next': ValueError: it returned [2-6] for"):
        weir.run_local(flow, parallelism=2, storage=str(tmp_path / "state"), settings=FAST, restart=never)
