"""Whole jobs whose aggregated column has another type than in their checkpoint: widened, or refused."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.ids import Token
from runtime.dataflow.builder import Dataflow
from runtime.io.memory.run_store import MemoryRunStore
from runtime.operators.aggregates import Count, Max
from tests.jobs.gated import Gated
from tests.jobs.live import running
from tests.jobs.numbers import committed


@dataclass
class Amounts(Gated):
    kind: pa.DataType = pa.int64()  # types do not change


def one_key(row: Mapping[str, Any]) -> int:
    return 1


def key_per_subtask(row: Mapping[str, Any]) -> int:
    return 1 + int(row["key"]) % 2


def job(source: Amounts, output: Path, key: Callable[[Mapping[str, Any]], int] = one_key) -> Dataflow:
    kind, flow = source.kind, Dataflow("typed")
    schema = pa.schema([("key", pa.int64()), ("amount", kind)])
    make = float if pa.types.is_floating(kind) else int
    rows = flow.source("numbers", source).flat_map(
        "typed", lambda row: [{"key": key(row), "amount": make(row["key"])}], schema
    )
    largest = rows.key_by("key").aggregate("largest", {"most": Max("amount"), "n": Count()})
    largest.sink("out", ParquetSink(str(output)))
    return flow


def stopped(source: Amounts, tmp_path: Path) -> str:
    compiled = job(source, tmp_path / "out", key_per_subtask).compile(2)
    with running(compiled, tmp_path / "state", MemoryRunStore()) as run:
        run.wait_for(lambda: run.operator("largest").get("records_in", 0) >= 20)
        run.checkpoints(2)
        snapshots = run.manifests[-1].operators["largest"].subtasks.values()
        types = {"aggregates.most:max": str(source.kind), "aggregates.n:count": "int64"}
        assert [snapshot.value_types for snapshot in snapshots] == [types] * 2
        return run.end("stop")


def test_a_job_whose_aggregated_column_became_wider_goes_on(tmp_path: Path) -> None:
    """A subtask whose keys get no new row has the wider type too: its results stand beside those of the others."""
    records = MemoryRunStore(token=Token(2), restore_from=stopped(Amounts(total=20, kind=pa.int32()), tmp_path))
    source = Amounts(total=40, kind=pa.int64())
    with running(job(source, tmp_path / "out").compile(2), tmp_path / "state", records) as run:
        run.wait_for(lambda: max((row["n"] for row in committed(tmp_path / "out")), default=0) >= 100)
        run.checkpoints(1)
        types = [snapshot.value_types for snapshot in run.manifests[-1].operators["largest"].subtasks.values()]
        run.end("cancel")
    assert types == [{"aggregates.most:max": "int64", "aggregates.n:count": "int64"}] * 2


def test_a_job_whose_aggregated_column_became_another_is_refused_before_any_slot_starts(tmp_path: Path) -> None:
    """It was found with the first batch of the restored job only, after sinks and sources had been opened."""
    records = MemoryRunStore(token=Token(2), restore_from=stopped(Amounts(total=20, kind=pa.int64()), tmp_path))
    source = Amounts(total=40, kind=pa.float64())
    with running(job(source, tmp_path / "out").compile(2), tmp_path / "state", records) as run:
        run.join()
    assert records.failure is not None
    assert records.failure["code"] == "state-type-changed"
    message = "state column 'aggregates.most:max' is int64 in the checkpoint and double in the job"
    assert message in records.failure["message"]
    assert "largest" in records.failure["message"]
    assert records.live == {}, "no slot was started"
