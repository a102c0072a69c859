"""A job of Weir that is timed: one that was interrupted has no time."""

from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks import slots
from runtime.connectors.sinks.discard import DiscardSink
from runtime.connectors.sources.sequence import SequenceSource
from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.builder import Dataflow
from runtime.errors import WeirError
from runtime.launch.local import LocalLauncher

ROWS = 3_000_000


def test_a_job_that_failed_and_went_on_is_no_result(tmp_path: Path) -> None:
    """What it had done before it failed would count for nothing in its seconds, and as much as all else in its rate."""
    raised = tmp_path / "raised"

    def once(batch: pa.RecordBatch) -> pa.RecordBatch:
        if not raised.exists():
            raised.touch()
            raise ValueError("once")
        return batch

    flow = Dataflow("interrupted")
    flow.source("numbers", SequenceSource(rows=ROWS, keys=10)).map_batches("once", once).sink("out", DiscardSink())
    with pytest.raises(WeirError, match="once"):
        slots.run(flow, 2, LocalLauncher(), str(tmp_path / "storage"), CoordinatorSettings(interval_ms=100))
