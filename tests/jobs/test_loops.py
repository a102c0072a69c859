"""Loops over real operators, files and threads: exact through failures, stops, drains and the end of input."""

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.connectors.sinks.print import PrintSink
from runtime.core.job.graph import Partitioning
from runtime.core.job.ids import Token
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.snapshot.manifest import Manifest
from runtime.dataflow.builder import Dataflow
from runtime.errors import JobRejected, WeirError
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.local import run_local
from runtime.operators.functions.keyed_process import KeyedProcessFunction
from runtime.operators.functions.process import ProcessFunction, SubtaskContext
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Bomb, Gated
from tests.jobs.live import FAST, Run, positions_in, running
from tests.jobs.numbers import SCHEMA, Numbers, committed

HOPS = 6
STEP = 1_000_000  #: a row's value grows by so much whenever it comes round


class Hop(KeyedProcessFunction):
    """One hop: the next key of a row may belong to another subtask."""

    def process(self, row: dict[str, Any], context: Any, out: Any) -> None:
        out.emit({"key": row["key"] % 7 + 1, "value": row["value"] + STEP})


def looping(source: Any, output: Path, bomb: Any = lambda batch: batch, hop: Any = Hop) -> Dataflow:
    """Every row comes round HOPS times, over keyed channels, and is then written once."""
    flow = Dataflow("loop")
    loop = flow.source("numbers", source).iterate("loop")
    hopped = loop.key_by("key").process("hop", hop, SCHEMA).map_batches("bomb", bomb)
    loop.close_with(hopped.map_batches("again", lambda batch: batch.filter(_left(batch))))
    results = hopped.map_batches("done", lambda batch: batch.filter(pc.invert(_left(batch))))
    results.sink("out", ParquetSink(str(output)))
    return flow


def _left(batch: pa.RecordBatch) -> Any:
    return pc.less(batch["value"], HOPS * STEP)


def written(output: Path) -> Counter[int]:
    return Counter(row["value"] - HOPS * STEP for row in committed(output))


def expected(source: Any) -> Counter[int]:
    return Counter(dict.fromkeys(range(source.total), source.splits))


def logged(manifest: Manifest) -> int:
    """Records that were on their way round."""
    return sum(s.rows for snapshot in manifest.operators["loop"].subtasks.values() for s in snapshot.feedback)


def restarted(run: Run, times: int) -> bool:
    return run.records.live.get("restarts") == times


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_bounded_job_with_a_loop_ends_once_nothing_goes_round(tmp_path: Path, parallelism: int) -> None:
    """S4-41: nothing is lost, and it does not wait for itself."""
    source = Numbers(total=200, batch=20)
    flow = looping(source, tmp_path / "out")
    records = run_local(flow, parallelism=parallelism, storage=str(tmp_path / "state"), settings=FAST)
    assert written(tmp_path / "out") == expected(source)
    assert set(records.completed[-1].manifest.finished_operators()) >= {"loop", "hop", "out"}


def test_a_job_that_fails_goes_on_with_what_was_going_round(tmp_path: Path, jobs: Jobs) -> None:
    """S4-04, S4-30, S4-36, S4-38, S4-40: each row once, although rows were in the loop at the checkpoints."""
    source, bomb = Gated(total=0, batch=2), Bomb()
    job = looping(source, tmp_path / "out", bomb).compile(2)
    with jobs.running(job, tmp_path / "state", restart=FixedDelay(attempts=10, delay_ms=0)) as run:
        for count in (1, 2, 3):
            source.total += 100
            run.wait_for(lambda: any(logged(m) for m in run.manifests if m.token == run.records.token))
            bomb.arm()
            run.wait_for(partial(restarted, run, count))
        run.wait_for(lambda: written(tmp_path / "out") == expected(source))
        run.end("drain")
    assert written(tmp_path / "out") == expected(source)
    uids = {uid for m in run.manifests for uid, o in m.operators.items() for s in o.subtasks.values() if s.feedback}
    assert uids == {"loop"}, "no other channel is stored"


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1)])
def test_a_stopped_loop_goes_on_at_another_parallelism(tmp_path: Path, before: int, after: int, jobs: Jobs) -> None:
    """S4-30, S4-43: what was on its way round is in the savepoint, and is handled before anything else."""
    source, output = Numbers(total=250, batch=5, unbounded=True), tmp_path / "out"
    with jobs.running(looping(source, output).compile(before), tmp_path / "state") as run:
        run.wait_for(lambda: any(logged(m) for m in run.manifests))
        savepoint = run.end("stop")
    records = MemoryRunStore(token=Token(7), restore_from=savepoint)
    with jobs.running(looping(source, output).compile(after), tmp_path / "state", records) as run:
        run.wait_for(lambda: written(output) == expected(source))
        run.end("drain")
    assert written(output) == expected(source)


def test_a_drain_lets_everything_in_the_loop_come_out(tmp_path: Path, jobs: Jobs) -> None:
    """S4-41: what had been read is written, and the savepoint holds nothing that is on its way."""
    source = Numbers(total=250, batch=5, unbounded=True)
    with jobs.running(looping(source, tmp_path / "out").compile(2), tmp_path / "state") as run:
        run.wait_for(lambda: any(logged(m) for m in run.manifests))
        run.end("drain")
    assert logged(run.manifests[-1]) == 0
    read = sum(positions_in(run.manifests[-1], tmp_path / "state", source.splits))
    assert written(tmp_path / "out").total() == read


async def ask(row: dict[str, Any]) -> list[dict[str, Any]]:
    await asyncio.sleep(0.001)
    return [row]


def test_the_end_of_a_loop_waits_for_what_its_operators_have_inside(tmp_path: Path) -> None:
    """S4-41: requests that are not answered, and rows that would wait a minute for their batch to be full."""
    source, flow = Numbers(total=60, batch=10), Dataflow("inside")
    hopped = (loop := flow.source("numbers", source).iterate("loop")).key_by("key").process("hop", Hop, SCHEMA)
    answers = hopped.async_map("ask", ask, SCHEMA)
    packed = answers.key_by("key").batches("pack", lambda batch: batch, max_rows=10_000, max_wait_ms=60_000)
    loop.close_with(packed.map_batches("again", lambda batch: batch.filter(_left(batch))))
    results = packed.map_batches("done", lambda batch: batch.filter(pc.invert(_left(batch))))
    results.sink("out", ParquetSink(str(tmp_path / "out")))
    run_local(flow, parallelism=2, storage=str(tmp_path / "state"), settings=FAST)
    assert written(tmp_path / "out") == expected(source)


class Echo(Hop):
    """Sends a row more round, a little later, for some."""

    def process(self, row: dict[str, Any], context: Any, out: Any) -> None:
        super().process(row, context, out)
        if row["value"] % 10 == 0:
            context.register_processing_timer(context.now_ms() + row["value"] % 7)

    def on_timer(self, timestamp_ms: int, context: Any, out: Any) -> None:
        out.emit({"key": context.current_key, "value": -1})


def test_a_loop_with_timers_comes_to_its_end(tmp_path: Path) -> None:
    """S4-41: they fire while it goes round; those still ahead when all is quiet do not, as at any end of data."""
    source = Numbers(total=100, batch=10)
    flow = looping(source, tmp_path / "out", hop=Echo)
    run_local(flow, parallelism=3, storage=str(tmp_path / "state"), settings=FAST, restart=FixedDelay(attempts=0))
    rows = written(tmp_path / "out")
    assert rows.pop(STEP - 1) > 0, "from -1 it takes a round more"
    assert rows == expected(source)


class HoldsBack(ProcessFunction):
    """Gives rows on three at a time."""

    def open(self, context: SubtaskContext) -> None:
        self._stored = context.list_state("held")
        self._held = list(self._stored.get())

    def process(self, row: dict[str, Any], context: SubtaskContext, out: Any) -> None:
        self._held.append(row)
        if len(self._held) == 3:
            self.settle(context, out)

    def settle(self, context: SubtaskContext, out: Any) -> None:
        for row in self._held:
            out.emit(row)
        self._held = []

    def snapshot(self, checkpoint: int) -> None:
        self._stored.replace(self._held)


def test_a_function_in_a_loop_puts_out_what_it_holds_back_when_the_loop_settles(tmp_path: Path) -> None:
    """S4-41: at the end of its input it would be too late: rows would come back into a loop that has ended."""
    source, flow = Numbers(total=50, batch=10), Dataflow("holds")
    loop = flow.source("numbers", source).iterate("loop")
    stream = loop.key_by("key").process("hop", Hop, SCHEMA).process("hold", HoldsBack, SCHEMA)
    loop.close_with(stream.map_batches("again", lambda batch: batch.filter(_left(batch))))
    results = stream.map_batches("done", lambda batch: batch.filter(pc.invert(_left(batch))))
    results.sink("out", ParquetSink(str(tmp_path / "out")))
    once = FixedDelay(attempts=0)
    run_local(flow, parallelism=2, storage=str(tmp_path / "state"), settings=FAST, restart=once)
    assert written(tmp_path / "out") == expected(source)


# ---------------------------------------------------------------- what is refused


def test_a_loop_that_is_not_closed_is_refused() -> None:
    flow = Dataflow("open")
    flow.source("numbers", Numbers(total=1)).iterate("loop").sink("out", PrintSink())
    with pytest.raises(JobRejected, match="this loop has no back-edge") as error:
        flow.compile(1)
    assert (error.value.code, error.value.field) == ("open-loop", "loop")


def test_each_stream_that_is_brought_back_has_an_input_of_its_own() -> None:
    flow = Dataflow("two")
    loop = flow.source("numbers", Numbers(total=1)).iterate("loop")
    first_branch, second_branch = (
        loop.map_batches(uid, lambda batch: batch, parallelism=p) for uid, p in (("one", None), ("two", 1))
    )
    loop.close_with(first_branch)
    loop.close_with(second_branch)
    first_branch.sink("out", PrintSink())
    back = [edge for edge in flow.compile(2).graph.edges if edge.feedback]
    assert [(e.source, e.target, e.input, e.partitioning) for e in back] == [
        ("one", "loop", 1, Partitioning.FORWARD),
        ("two", "loop", 2, Partitioning.REBALANCE),
    ]


def test_columns_that_differ_from_those_of_the_loop_name_its_head(tmp_path: Path) -> None:
    flow = Dataflow("columns")
    loop = flow.source("numbers", Numbers(total=1)).iterate("loop")
    loop.close_with(loop.map_batches("shorter", lambda batch: batch.select(["key"])))
    loop.sink("out", ParquetSink(str(tmp_path / "out")))
    with pytest.raises(WeirError, match="operator 'loop' changed the columns of its output: 'value' is missing"):
        run_local(flow, storage=str(tmp_path / "state"), settings=FAST, restart=FixedDelay(attempts=0))


def test_a_log_that_is_gone_is_named(tmp_path: Path) -> None:
    source = Numbers(total=4_000, batch=5, unbounded=True)
    job = looping(source, tmp_path / "out").compile(1)
    with running(job, tmp_path / "state") as run:
        run.wait_for(lambda: any(logged(m) for m in run.manifests))
    checkpoint = next(completed for completed in run.records.completed if logged(completed.manifest))
    log = [s for snapshot in checkpoint.manifest.operators["loop"].subtasks.values() for s in snapshot.feedback]
    (tmp_path / "state" / log[0].path).unlink()
    with running(job, tmp_path / "state", MemoryRunStore(token=Token(7), restore_from=checkpoint.folder)) as successor:
        successor.join()
    assert successor.records.failure is not None
    assert log[0].path in successor.records.failure["message"]
