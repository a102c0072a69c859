"""The life of an operator in real slots: which hooks are called, in which order, at each of the ends of a job."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.lifecycle import MasterExitCode, RunState
from runtime.core.job.messages import MAX_WATERMARK
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.commit import CommitPermit
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.plan import CompiledJob
from runtime.ports import Collector, Operator, OperatorContext
from tests.jobs.conftest import Jobs
from tests.jobs.live import Run, with_operator
from tests.jobs.numbers import Numbers, counts, expected_counts, final_counts
from tests.shared import Notes

ASKED = CoordinatorSettings(interval_ms=None, min_pause_ms=0)

Hook = tuple[str, Any]


class Witness(Operator):
    """Passes rows on and notes the hooks that are called on it, as (subtask, hook, detail)."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def _note(self, hook: str, detail: Any = None) -> None:
        self._notes.add((self._index, hook, detail))

    def open(self, context: OperatorContext) -> None:
        self._index = context.index
        self._note("open")

    def start(self, out: Collector) -> None:
        self._note("start")

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        self._note("process", input)
        out.emit(batch)

    def on_watermark(self, watermark: int, out: Collector) -> None:
        self._note("watermark", watermark)

    def prepare_snapshot_pre_barrier(self, checkpoint: int, out: Collector) -> None:
        self._note("prepare", checkpoint)

    def snapshot(self, checkpoint: int) -> None:
        self._note("snapshot", checkpoint)

    def checkpoint_completed(self, permit: CommitPermit) -> None:
        self._note("completed", int(permit.checkpoint))

    def end_input(self, input: int, out: Collector) -> None:
        self._note("end_input", input)

    def finish(self, out: Collector) -> None:
        self._note("finish")

    def close(self) -> None:
        self._note("close")


def job(source: Numbers, folder: Path, notes: Notes) -> CompiledJob:
    """Two subtasks of a witness between source and sink."""
    flow = Dataflow("life")
    witnessed = (
        flow.source("numbers", source).key_by("key").batches("witness", lambda batch: batch, max_rows=1, max_wait_ms=0)
    )
    witnessed.sink("out", ParquetSink(str(folder / "out")))
    return with_operator(flow.compile(2), "witness", lambda: Witness(notes))


def life_of(notes: Notes, index: int) -> list[Hook]:
    return [(hook, detail) for subtask, hook, detail in notes.values if subtask == index]


def at_the_end(life: list[Hook]) -> list[Hook]:
    """From the last row on."""
    last = max(at for at, (hook, _) in enumerate(life) if hook == "process")
    return life[last + 1 :]


def ended(jobs: Jobs, folder: Path, end: str) -> tuple[Run, Notes]:
    """A job that ends by itself, or is asked to once all rows have arrived."""
    source, notes = Numbers(total=100, batch=50, keys=50, unbounded=end != "by itself"), Notes()
    with jobs.running(job(source, folder, notes), folder / "state", settings=ASKED) as run:
        if end != "by itself":
            run.wait_for(lambda: run.operator("witness").get("records_in") == source.total * source.splits)
            run.ask(end)
        assert run.join() is MasterExitCode.DONE
    assert run.records.failure is None
    return run, notes


@pytest.mark.parametrize("end", ["by itself", "drain"])
def test_at_a_true_end_an_operator_finishes_and_then_waits_for_its_checkpoint(
    tmp_path: Path, jobs: Jobs, end: str
) -> None:
    """S0-26, S0-40, S0-64, S0-65, S0-66, S0-71, S0-72, S0-74, S0-75, S1-34, S3-55.

    Maximum watermark, `end_input` with the input's number, `finish`; a checkpoint that begins after it, with the work
    before the barrier ahead of the snapshot; its completion; `close`.
    """
    run, notes = ended(jobs, tmp_path, end)
    assert run.records.state is RunState.FINISHED
    (manifest,) = run.manifests
    number = manifest.checkpoint
    for index in (0, 1):
        life = life_of(notes, index)
        assert life[:2] == [("open", None), ("start", None)]
        assert at_the_end(life) == [
            ("watermark", MAX_WATERMARK),
            ("end_input", 0),
            ("finish", None),
            ("prepare", number),
            ("snapshot", number),
            ("completed", number),
            ("close", None),
        ]
    assert manifest.finished_operators() == ("numbers", "witness", "out")


def test_at_a_stop_an_operator_is_closed_and_does_not_finish(tmp_path: Path, jobs: Jobs) -> None:
    """S0-26, S0-35, S0-71, S0-73: no maximum watermark, no `end_input`, no `finish`; the savepoint, then `close`."""
    run, notes = ended(jobs, tmp_path, "stop")
    assert run.records.state is RunState.STOPPED
    (manifest,) = run.manifests
    number = manifest.checkpoint
    for index in (0, 1):
        assert at_the_end(life_of(notes, index)) == [
            ("prepare", number),
            ("snapshot", number),
            ("completed", number),
            ("close", None),
        ]
    assert manifest.finished_operators() == ()


def test_every_subtask_hears_of_each_checkpoint_in_order(tmp_path: Path, jobs: Jobs) -> None:
    """S2-02, S2-16, S2-51, S3-44, S3-47: periodic barriers cut the stream; ids rise and are the same everywhere."""
    source, notes = Numbers(total=2_000, batch=10, keys=50, unbounded=True), Notes()
    with jobs.running(job(source, tmp_path, notes), tmp_path / "state") as run:
        run.checkpoints(4)
        run.end("drain")
    numbers = [manifest.checkpoint for manifest in run.manifests]
    assert numbers == sorted(set(numbers))
    for index in (0, 1):
        life = life_of(notes, index)
        checkpoints = [detail for hook, detail in life if hook == "snapshot"]
        assert [detail for hook, detail in life if hook == "prepare"] == checkpoints
        assert set(numbers) <= set(checkpoints)
        completions = [detail for hook, detail in life if hook == "completed"]
        assert completions == sorted(set(completions))
        assert set(completions) <= set(numbers)
        assert completions[-1] == numbers[-1]
        for number in completions:
            assert life.index(("snapshot", number)) < life.index(("completed", number))


def test_reports_of_checkpoints_hold_what_the_page_shows(tmp_path: Path, jobs: Jobs) -> None:
    """S2-20, S2-44, S2-46, S2-47, S2-53: subtasks, acknowledgements, sizes, from the first report to the last."""
    source = Numbers(total=2_000, batch=20, unbounded=True)
    with jobs.running(counts(source, tmp_path / "out").compile(2), tmp_path / "state") as run:
        run.checkpoints(3)
        run.end("drain")
    assert final_counts(tmp_path / "out").keys() <= expected_counts(source).keys()
    written = []  # nothing, where nothing has changed since the checkpoint before
    for completed in run.records.completed:
        number = completed.manifest.checkpoint
        reports = [report for report in run.records.reports if report.checkpoint == number]
        assert reports[0].acknowledged == 0
        assert reports[-1].acknowledged == reports[-1].subtasks == reports[0].subtasks == 6
        assert reports[-1].triggered_at == completed.manifest.triggered_at <= completed.at
        assert {row["uid"] for row in completed.operators} == {"numbers", "counts", "out"}
        assert completed.size_bytes >= sum(row["state_bytes"] for row in completed.operators) > 0
        assert sum(row["subtasks"] for row in completed.operators) == 6
        written.append(sum(row["written_bytes"] for row in completed.operators))
        assert completed.written_bytes > written[-1]
    assert any(written)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_any_number_of_subtasks_gives_the_same_answer(tmp_path: Path, jobs: Jobs, parallelism: int) -> None:
    """S4-08: one graph, so many instances of each operator over partitions of the stream."""
    source = Numbers(total=1_000, batch=20, keys=50)
    compiled = counts(source, tmp_path / "out").compile(parallelism)
    records = jobs.run_to_end(compiled, tmp_path / "state")
    assert final_counts(tmp_path / "out") == expected_counts(source)
    assert {uid: len(o.subtasks) for uid, o in records.completed[-1].manifest.operators.items()} == dict.fromkeys(
        ("numbers", "counts", "out"), parallelism
    )
