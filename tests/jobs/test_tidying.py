"""State files of a real job are merged while it runs, and hold what they held."""

from pathlib import Path

import pyarrow as pa
import pytest

from runtime.connectors.sinks.discard import DiscardSink
from runtime.connectors.sources.sequence import SequenceSource
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.manifest import Manifest
from runtime.dataflow.builder import Dataflow
from runtime.operators.aggregates import Count
from runtime.state.keyed_table import KeyedTable
from tests.jobs.live import restored_state, running

KEYS, ROWS_PER_SECOND = 10_000, 200_000
MOST_FILES = 12  #: without merging there is one more with each checkpoint


def rows_counted(manifest: Manifest, root: Path) -> int:
    """By what the aggregates would go on from."""
    state = restored_state(manifest, "counts", root)
    fields = pa.schema([pa.field("n:count", pa.int64(), nullable=False)])
    table = state.keyed_table("aggregates", pa.schema([("key", pa.int64())]), fields)
    return int(table.column("n:count")[table.row_ids()].sum())


def test_files_stay_few_while_a_job_runs_and_hold_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4-02."""
    monkeypatch.setattr(KeyedTable, "is_mostly_changed", False)
    flow = Dataflow("tidying")
    numbers = flow.source("numbers", SequenceSource(keys=KEYS, rows_per_second=ROWS_PER_SECOND))
    numbers.key_by("key").aggregate("counts", {"n": Count()}).sink("out", DiscardSink())
    settings = CoordinatorSettings(interval_ms=20, min_pause_ms=0)
    with running(flow.compile(2), tmp_path, settings=settings) as run:
        run.wait_for(lambda: len(run.manifests) > MOST_FILES + 5)
        run.end("drain")
    snapshots = [snapshot for manifest in run.manifests for snapshot in manifest.operators["counts"].subtasks.values()]
    assert 1 < max(len(snapshot.keyed["aggregates"]) for snapshot in snapshots if snapshot.keyed) < MOST_FILES
    assert rows_counted(run.manifests[-1], tmp_path) == run.operator("numbers")["records_out"] > KEYS
