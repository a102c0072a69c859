"""Rows that leave before the barrier: by an operator of the author, and by the hook of a process function."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir
from runtime.core.job.lifecycle import MasterExitCode, RunState
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Bomb, Gated
from tests.jobs.numbers import SCHEMA, Numbers, committed


class Buffering(weir.spi.Operator):
    """Holds all rows until a barrier, so that its snapshots are empty. Holds event time back meanwhile."""

    def __init__(self) -> None:
        self._held: list[pa.RecordBatch] = []

    def process(self, input: int, batch: pa.RecordBatch, out: weir.spi.Collector) -> None:
        self._held.append(batch)

    def prepare_snapshot_pre_barrier(self, checkpoint: int, out: weir.spi.Collector) -> None:
        self._emit(out)

    def finish(self, out: weir.spi.Collector) -> None:
        self._emit(out)

    def _emit(self, out: weir.spi.Collector) -> None:
        batches, self._held = self._held, []
        for batch in batches:
            out.emit(batch)


class BufferingRows(weir.ProcessFunction):
    """The same by rows."""

    def __init__(self) -> None:
        self._held: list[dict[str, Any]] = []

    def process(self, row: dict[str, Any], context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        self._held.append(row)

    def prepare_snapshot_pre_barrier(
        self, checkpoint: int, context: weir.SubtaskContext, out: weir.RowCollector
    ) -> None:
        context.count("barriers")
        self.finish(context, out)

    def finish(self, context: weir.SubtaskContext, out: weir.RowCollector) -> None:
        rows, self._held = self._held, []
        for row in rows:
            out.emit(row)


class BufferingKeys(weir.KeyedProcessFunction):
    """The same behind a key: the hook has no current key."""

    def __init__(self) -> None:
        self._held: list[dict[str, Any]] = []

    def process(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        self._held.append(row)

    def prepare_snapshot_pre_barrier(
        self, checkpoint: int, context: weir.ProcessContext, out: weir.RowCollector
    ) -> None:
        self.finish(context, out)

    def finish(self, context: weir.ProcessContext, out: weir.RowCollector) -> None:
        rows, self._held = self._held, []
        for row in rows:
            out.emit(row)


STEPS: dict[str, Callable[[weir.Stream], weir.Stream]] = {
    "operator": lambda rows: rows.transform("buffer", Buffering, SCHEMA),
    "operator behind a key": lambda rows: rows.key_by("key").transform("buffer", Buffering, SCHEMA),
    "function": lambda rows: rows.process("buffer", BufferingRows, SCHEMA),
    "function behind a key": lambda rows: rows.key_by("key").process("buffer", BufferingKeys, SCHEMA),
}


@pytest.mark.parametrize("step", STEPS)
def test_rows_that_leave_before_the_barrier_need_no_state(step: str, tmp_path: Path, jobs: Jobs) -> None:
    """S3-40, S3-55, S3-60: nothing is stored, and nothing is lost or doubled by an attempt that fails between."""
    source, bomb, output = Gated(total=100), Bomb(), tmp_path / "out"
    flow = weir.Dataflow("buffered")
    rows = flow.source("numbers", source).map_batches("bomb", bomb)
    STEPS[step](rows).sink("out", weir.ParquetSink(str(output)))

    def is_exact() -> bool:
        return sorted(row["value"] for row in committed(output)) == sorted(list(range(source.total)) * 4)

    restart = weir.FixedDelay(attempts=9, delay_ms=20)
    with jobs.running(flow.compile(2), tmp_path / "state", restart=restart) as run:
        for token in (2, 3):
            run.wait_for(is_exact)
            bomb.arm()
            source.total += 60
            run.wait_for(lambda token=token: run.records.token == token)  # type: ignore[misc]
        run.wait_for(is_exact)
        run.end("drain")
    assert is_exact()
    stored = [s for m in run.manifests for s in m.operators["buffer"].subtasks.values()]
    assert stored
    assert not any(any(each.lists.values()) for each in stored)


class EmitsInSnapshot(Buffering):
    """Wrong: what it emits here follows the barrier, and is lost if the next attempt restores this checkpoint."""

    def process(self, input: int, batch: pa.RecordBatch, out: weir.spi.Collector) -> None:
        super().process(input, batch, out)
        self._out = out

    def prepare_snapshot_pre_barrier(self, checkpoint: int, out: weir.spi.Collector) -> None:
        return None

    def snapshot(self, checkpoint: int) -> None:
        self._emit(self._out)


class OtherColumns(Buffering):
    def process(self, input: int, batch: pa.RecordBatch, out: weir.spi.Collector) -> None:
        out.emit(batch.rename_columns(["key", "worth"]))


@pytest.mark.parametrize(
    ("operator", "reason"),
    [
        (EmitsInSnapshot, "output while state is captured is refused: it would be lost"),
        (OtherColumns, "differ from the declared columns: 'value' is missing; 'worth' is new"),
    ],
)
def test_output_that_would_be_lost_or_is_not_as_declared_ends_the_job(
    operator: type[Buffering], reason: str, tmp_path: Path, jobs: Jobs
) -> None:
    """S3-61: the operator is named."""
    flow = weir.Dataflow("wrong")
    numbers = flow.source("numbers", Numbers(total=100, unbounded=True))
    numbers.transform("buffer", operator, SCHEMA).sink("out", weir.DiscardSink())
    with jobs.running(flow.compile(2), tmp_path / "state") as run:
        assert run.join() is MasterExitCode.DONE
    assert run.records.state is RunState.FAILED
    assert reason in str(run.records.failure)
    assert "buffer" in str(run.records.failure)


class Splitting(weir.spi.Operator):
    """Even values to the main output, odd ones to a side output, and the number of all before each barrier."""

    def open(self, context: weir.spi.OperatorContext) -> None:
        self._seen = 0

    def process(self, input: int, batch: pa.RecordBatch, out: weir.spi.Collector) -> None:
        self._seen += batch.num_rows
        odd = pa.array([value % 2 == 1 for value in batch.column("value").to_pylist()])
        out.emit_to("odd", batch.filter(odd))
        out.emit(batch.filter(pa.array([not is_odd for is_odd in odd.to_pylist()])))

    def prepare_snapshot_pre_barrier(self, checkpoint: int, out: weir.spi.Collector) -> None:
        self.finish(out)

    def finish(self, out: weir.spi.Collector) -> None:
        if self._seen:
            out.emit_to("seen", pa.record_batch({"n": [self._seen]}))
        self._seen = 0


ODD = weir.OutputTag("odd", SCHEMA)
SEEN = weir.OutputTag("seen", pa.schema([("n", pa.int64())]))
UNREAD = weir.OutputTag("unread", SCHEMA)


def test_an_operator_has_side_outputs(tmp_path: Path, jobs: Jobs) -> None:
    """Each with its own columns and readers; they take part in checkpoints as the main output does."""
    flow = weir.Dataflow("split")
    split = flow.source("numbers", Numbers(total=400)).transform(
        "split", Splitting, SCHEMA, side_outputs=[ODD, SEEN, UNREAD]
    )
    split.sink("even", weir.ParquetSink(str(tmp_path / "even")))
    split.side_output(ODD).key_by("key").aggregate("counts", {"n": weir.Count()}).sink(
        "odd", weir.ParquetSink(str(tmp_path / "odd"))
    )
    split.side_output(SEEN).sink("seen", weir.ParquetSink(str(tmp_path / "seen")))
    jobs.run_to_end(flow.compile(2), tmp_path / "state")
    assert sorted(row["value"] for row in committed(tmp_path / "even")) == sorted(list(range(0, 400, 2)) * 4)
    last: dict[int, int] = {}
    for row in committed(tmp_path / "odd"):
        last[row["key"]] = max(row["n"], last.get(row["key"], 0))
    assert sum(last.values()) == 4 * 200
    assert sum(row["n"] for row in committed(tmp_path / "seen")) == 4 * 400


def test_what_cannot_be_is_refused_when_the_job_is_built(tmp_path: Path) -> None:
    """S3-61: a hook whose body would never run, an operator that all subtasks would share, an undeclared output."""

    class Yields(Buffering):
        def prepare_snapshot_pre_barrier(self, checkpoint: int, out: weir.spi.Collector) -> Any:
            yield None

    rows = weir.Dataflow("wrong").source("numbers", Numbers(total=1))
    for make, message in (
        (Yields, "prepare_snapshot_pre_barrier uses yield"),
        (Buffering(), "not an instance"),
        (dict, "dict is not a subclass of Operator"),
    ):
        with pytest.raises(weir.JobRejected, match=message) as error:
            rows.transform("buffer", make)  # type: ignore[arg-type]
        assert (error.value.code, error.value.field) == ("bad-operator-factory", "buffer")
    split = rows.transform("split", Splitting, side_outputs=[ODD])
    with pytest.raises(weir.JobRejected, match="no side output 'seen'; declared in side_outputs: 'odd'"):
        split.side_output(SEEN)
    with pytest.raises(weir.JobRejected, match="names the output 'odd' twice"):
        rows.transform("split", Splitting, side_outputs=[ODD, ODD])
