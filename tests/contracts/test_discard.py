"""The discarding sink: counts and sums are state, so they stay right across restores and rescales."""

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.connectors.sinks.discard import STATE_NAME, DiscardSink, DiscardWriter, totals
from runtime.connectors.sources.sequence import SequenceSource
from runtime.core.job.ids import OperatorId, SubtaskId, Token
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.restore.state_assignment import SubtaskRestore
from runtime.dataflow.builder import Dataflow
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.launch.local import run_local
from runtime.ports import OperatorContext
from runtime.state.backend import SubtaskState


def state_of(context: OperatorContext) -> Any:
    assert isinstance(context.state, SubtaskState)
    return context.state.capture(False).write(MemorySnapshotStore(), "chk-1")[0].lists[STATE_NAME]


def opened(*entries: Any) -> tuple[DiscardWriter, OperatorContext]:
    state = SubtaskState(range(16), 16, None)
    state.restore(SubtaskRestore(subtask=SubtaskId(OperatorId("out"), 0), lists={STATE_NAME: entries}))
    context = OperatorContext(
        job="7", uid="out", index=0, parallelism=1, max_parallelism=16, token=Token(1), state=state, now_ms=lambda: 0,
    )  # fmt: skip
    writer = DiscardSink().writer()
    writer.open(context)
    return writer, context


def batch(*numbers: int | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64()), "text": ["x"] * len(numbers)})


def test_rows_and_sums_of_integer_columns_are_kept_in_state() -> None:
    writer, context = opened()
    writer.write(batch(1, 2, None))
    writer.write(batch(2**62))
    assert writer.prepare(1) == ()
    assert state_of(context) == ({"rows": 4, "sums": {"n": str(2**62 + 3)}},)
    assert context.counters == {"discarded_rows": 4}


def test_what_is_restored_counts_on() -> None:
    """A rescale may deal the entries of several subtasks to one."""
    writer, context = opened({"rows": 3, "sums": {"n": "5"}}, {"rows": 4, "sums": {"n": "-1", "m": "2"}})
    writer.write(batch(1))
    writer.prepare(2)
    assert totals(state_of(context)) == (8, {"n": 5, "m": 2})


RANGES = {pa.int64(): (-(2**63), 2**63 - 1), pa.uint64(): (0, 2**64 - 1), pa.int8(): (-128, 127)}


@pytest.mark.parametrize("kind", RANGES, ids=str)
@given(data=st.data())
def test_sums_are_exact_beyond_64_bits(kind: pa.DataType, data: st.DataObject) -> None:
    """Also through JSON, where whole numbers end at 64 bits."""
    numbers = st.none() | st.sampled_from(RANGES[kind]) | st.integers(*RANGES[kind])
    batches = data.draw(st.lists(st.lists(numbers, max_size=9), max_size=4))
    writer, context = opened()
    for values in batches:
        writer.write(pa.record_batch({"n": pa.array(values, kind)}))
    writer.prepare(1)
    entries = msgspec.json.decode(msgspec.json.encode(state_of(context)))
    expected = sum(value for values in batches for value in values if value is not None)
    assert totals(entries) == (sum(map(len, batches)), {"n": expected} if batches else {})


def test_the_last_manifest_of_a_job_tells_what_was_discarded(tmp_path: Any) -> None:
    rows = 300_000
    flow = Dataflow("measure")
    flow.source("numbers", SequenceSource(rows=rows)).sink("out", DiscardSink())
    records = run_local(flow, parallelism=2, storage=str(tmp_path), settings=CoordinatorSettings(interval_ms=50))
    last = records.completed[-1].manifest.operators["out"].subtasks
    count, sums = totals(entry for snapshot in last.values() for entry in snapshot.lists[STATE_NAME])
    assert count == rows
    assert sums["id"] == rows * (rows - 1) // 2
