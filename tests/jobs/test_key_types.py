"""Whole jobs whose key column has another type than their checkpoint: widened, or refused before anything starts."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.ids import Token
from runtime.dataflow.builder import Dataflow
from runtime.io.memory.run_store import MemoryRunStore
from runtime.operators.aggregates import Count
from tests.jobs.gated import Gated
from tests.jobs.live import running
from tests.jobs.numbers import committed


@dataclass
class Keyed(Gated):
    """Its columns are known before it reads, where `described`."""

    kind: pa.DataType = pa.int64()  # types do not change


class Described(Keyed):
    def output_columns(self) -> pa.Schema:
        return pa.schema([("key", self.kind)])


def job(source: Keyed, output: Path) -> Dataflow:
    def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"key": batch.column("key").cast(source.kind)})

    flow = Dataflow("typed")
    rows = flow.source("numbers", source)
    schema = pa.schema([("key", source.kind)])
    if isinstance(source, Described):
        typed = rows.flat_map("typed", lambda row: [{"key": row["key"]}], schema)
    else:
        typed = rows.map_batches("typed", convert)
    typed.key_by("key").aggregate("counts", {"n": Count()}).sink("out", ParquetSink(str(output)))
    return flow


def stopped(source: Keyed, tmp_path: Path, records: MemoryRunStore) -> str:
    with running(job(source, tmp_path / "out").compile(2), tmp_path / "state", records) as run:
        run.wait_for(lambda: run.operator("counts").get("records_in", 0) > 0)
        run.checkpoints(2)
        return run.end("stop")


def test_a_job_whose_key_column_became_wider_goes_on(tmp_path: Path) -> None:
    """Every snapshot failed in the background, for ever, and nothing was committed."""
    savepoint = stopped(Keyed(total=20, kind=pa.int32()), tmp_path, MemoryRunStore())
    records = MemoryRunStore(token=Token(2), restore_from=savepoint)
    source = Keyed(total=40, kind=pa.int64())
    with running(job(source, tmp_path / "out").compile(2), tmp_path / "state", records) as run:
        run.wait_for(lambda: max((row["n"] for row in committed(tmp_path / "out")), default=0) >= 22)
        manifest = run.manifests[-1]
        run.end("cancel")
    assert all(snapshot.key_types == {"key": "int64"} for snapshot in manifest.operators["counts"].subtasks.values())


@pytest.mark.parametrize("make", [Keyed, Described])
def test_a_job_whose_key_column_became_another_is_refused_by_name(tmp_path: Path, make: type[Keyed]) -> None:
    """Where a step declares its columns before anything starts; else with the first batch, and for good."""
    savepoint = stopped(make(total=20, kind=pa.float32()), tmp_path, MemoryRunStore())
    records = MemoryRunStore(token=Token(2), restore_from=savepoint)
    with running(
        job(make(total=40, kind=pa.float64()), tmp_path / "out").compile(2), tmp_path / "state", records
    ) as run:
        run.join()
    assert records.failure is not None
    assert records.failure["code"] == "key-type-changed"
    where = "checkpoint" if make is Described else "state"
    assert f"key column 'key' is float in the {where} and double in the" in records.failure["message"]
    assert "counts" in records.failure["message"]
    assert records.live == {} or make is Keyed, "no slot was started"
