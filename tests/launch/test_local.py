"""Whole jobs on the local host: real machines, real state, real files; threads instead of Spark."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.lifecycle import RunState
from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.builder import Dataflow
from runtime.errors import WeirError
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.local import run_local
from runtime.master import attempt
from runtime.operators.functions.function import RowCollector
from runtime.operators.functions.keyed_process import KeyedProcessFunction, ProcessContext
from runtime.slot import slot
from tests.jobs.numbers import Numbers, committed, counts, expected_counts, final_counts

FAST = CoordinatorSettings(interval_ms=200, min_pause_ms=10)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_bounded_job_ends_by_itself_with_everything_committed(tmp_path: Path, parallelism: int) -> None:
    """S0-14, S0-27, S4-08: parallelism 1, 2 and 3 give one answer, also when no interval has passed."""
    source = Numbers(total=2_000)
    records = run_local(
        counts(source, tmp_path / "out"), parallelism=parallelism, storage=str(tmp_path / "state"), settings=FAST
    )
    assert records.state is RunState.FINISHED
    assert final_counts(tmp_path / "out") == expected_counts(source)
    assert not list((tmp_path / "out").glob(".weir-*"))


def test_restoring_the_last_checkpoint_of_an_ended_job_ends_at_once_without_output(tmp_path: Path) -> None:
    """S0-20, S0-22."""
    source = Numbers(total=500)
    storage = str(tmp_path / "state")
    records = run_local(counts(source, tmp_path / "out"), parallelism=2, storage=storage, settings=FAST)
    rows = len(committed(tmp_path / "out"))
    last = records.completed[-1]
    assert set(last.manifest.finished_operators()) == {"numbers", "counts", "out"}
    second_run = MemoryRunStore(restore_from=last.folder)
    run_local(counts(source, tmp_path / "out"), parallelism=2, storage=storage, settings=FAST, records=second_run)
    assert second_run.state is RunState.FINISHED
    assert len(committed(tmp_path / "out")) == rows


def test_a_failing_operator_is_named_and_the_job_fails_when_the_strategy_gives_up(tmp_path: Path) -> None:
    from runtime.core.job.restart_strategy import FixedDelay

    flow = counts(Numbers(total=100), tmp_path / "out")
    broken = flow.source("more", Numbers(total=10)).map_batches("broken", lambda batch: batch.column("nope"))
    from runtime.connectors.sinks.parquet import ParquetSink

    broken.sink("out2", ParquetSink(str(tmp_path / "out2")))
    with pytest.raises(WeirError, match=r"operator 'broken', subtask 0, in process"):
        run_local(
            flow,
            storage=str(tmp_path / "state"),
            settings=FAST,
            restart=FixedDelay(attempts=1, delay_ms=10),
        )


def test_checkpoints_follow_each_other_without_any_mail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The master wakes when the coordinator wants to be woken, however long it would wait for mail."""
    monkeypatch.setattr(attempt, "TICK_INTERVAL_S", 60.0)
    monkeypatch.setattr(slot, "HEARTBEAT_INTERVAL_S", 60.0)
    source = Numbers(total=500, splits=1, batch=1, slow_until=str(tmp_path / "never"))
    settings = CoordinatorSettings(interval_ms=20, min_pause_ms=0)
    records = run_local(counts(source, tmp_path / "out"), storage=str(tmp_path / "state"), settings=settings)
    at_start, at_end = 1, 1  # mail comes with both, and may bring a checkpoint each
    assert len(records.completed) > at_start + at_end + 1


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
@pytest.mark.parametrize("keys", [["key"], ["text"], ["key", "text"]], ids=str)
def test_columns_of_views_are_keys_and_values_like_any_other(
    tmp_path: Path, keys: list[str], kind: pa.DataType
) -> None:
    """Arrow takes no rows of them: behind `key_by` they ended in a restart loop with its own error."""

    def with_text(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.append_column("text", batch["key"].cast(pa.string()).cast(kind))

    source, flow = Numbers(total=500), Dataflow("views")
    keyed = flow.source("numbers", source).map_batches("text", with_text).key_by(*keys)
    keyed.process("seen", Texts, pa.schema([("text", kind)])).sink("out", ParquetSink(str(tmp_path / "out")))
    records = run_local(flow, parallelism=2, storage=str(tmp_path / "state"), settings=FAST)
    assert (records.state, len(records.attempts)) == (RunState.FINISHED, 1)
    assert len(committed(tmp_path / "out")) == source.total * source.splits


class Texts(KeyedProcessFunction):
    def process(self, row: dict[str, Any], context: ProcessContext, out: RowCollector) -> None:
        out.emit({"text": row["text"]})
