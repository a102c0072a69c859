"""Collected rows: once each, bounded, in the process of the caller only."""

import json
import pickle
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import weir
from runtime.connectors.sinks.collect import CollectSink
from runtime.core.job.ids import CheckpointId, Token
from runtime.core.snapshot.commit import permit_from_master
from runtime.errors import JobRejected, WeirError
from runtime.ports import OperatorContext, SinkWriter, StageFolders
from runtime.state.backend import SubtaskState
from tests.jobs.gated import Bomb, Gated
from tests.jobs.live import positions_in, running


def writer(of: CollectSink, *, token: int = 1, index: int = 0) -> SinkWriter:
    writer = of.writer()
    writer.open(
        OperatorContext(
            job="job", uid="out", index=index, parallelism=4, max_parallelism=16, token=Token(token),
            state=SubtaskState(range(4), 16, None), now_ms=lambda: 0,
        )
    )  # fmt: skip
    return writer


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64())})


def commit(of: CollectSink, checkpoint: int, committables: Any, token: int = 1) -> None:
    permit, committer = permit_from_master("job", Token(token), CheckpointId(checkpoint)), of.committer()
    copies = json.loads(json.dumps(committables))
    committer.commit_epoch(permit, copies)
    committer.commit(permit, copies)


def test_committables_are_collected_once_whatever_is_repeated() -> None:
    of = CollectSink()
    first_writer, second_writer = writer(of), writer(of, index=1)
    assert first_writer.prepare(1) == ()
    first_writer.write(rows(1, 2))
    first_writer.write(rows(3).slice(0, 1))
    second_writer.write(rows(4))
    first = [*first_writer.prepare(2), *second_writer.prepare(2)]
    assert of.table().num_rows == 0
    commit(of, 2, first)
    first_writer.write(rows(5))
    for token in (1, 2):
        commit(of, 3, [*first, *first_writer.prepare(3)], token)
    assert [row["n"] for row in of.rows()] == [1, 2, 3, 4, 5]


def test_columns_may_change_within_a_checkpoint() -> None:
    of = CollectSink()
    sink_writer = writer(of)
    sink_writer.write(rows(1))
    sink_writer.write(pa.RecordBatch.from_pydict({"n": [2], "text": ["a"]}))
    sink_writer.write(pa.RecordBatch.from_pydict({"n": pa.array([3], pa.int32())}))
    commit(of, 1, sink_writer.prepare(1))
    assert of.rows() == [{"n": 1, "text": None}, {"n": 2, "text": "a"}, {"n": 3, "text": None}]


def test_a_column_of_two_types_is_named() -> None:
    of = CollectSink()
    sink_writer = writer(of)
    sink_writer.write(rows(1))
    sink_writer.write(pa.RecordBatch.from_pydict({"n": ["a"]}))
    commit(of, 1, sink_writer.prepare(1))
    with pytest.raises(JobRejected, match="Field n has incompatible types"):
        of.table()


def test_windows_after_the_year_9999_are_collected(tmp_path: Path) -> None:
    """Python's times end there. Event times may reach 146 million years."""
    times = pa.array([-(2**62), 253_402_300_770_000, 253_402_300_800_000, 2**62 - 1]).cast(pa.timestamp("ms"))
    flow, of = weir.Dataflow("far"), CollectSink()
    far = flow.source("numbers", weir.SequenceSource(rows=4)).map_batches("far", partial(_with_times, times))
    far.key_by("id").window("minutes", timedelta(minutes=1), "at", {"rows": weir.Count()}).sink("out", of)
    weir.run_local(flow, parallelism=1, storage=str(tmp_path))
    windows = {row["id"]: (row["window_start"], row["window_end"]) for row in of.rows()}
    minute = np.timedelta64(60_000, "ms")
    assert windows == {
        1: (datetime(9999, 12, 31, 23, 59), np.datetime64("10000-01-01", "ms")),  # noqa: DTZ001
        2: (np.datetime64("10000-01-01", "ms"), np.datetime64("10000-01-01", "ms") + minute),
        **{
            number: (np.datetime64(at // 60_000 * 60_000, "ms"), np.datetime64(at // 60_000 * 60_000, "ms") + minute)
            for number, at in ((3, 2**62 - 1), (0, -(2**62)))
        },
    }


def _with_times(times: pa.Array, batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("at", times.take(batch["id"]))


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.timestamp(unit, zone) for unit in ("s", "ms") for zone in (None, "UTC", "Europe/Berlin")),
        pa.duration("s"), pa.duration("ms"), pa.date64(),
    ],
    ids=str,
)  # fmt: skip
def test_times_that_python_lacks_are_numpy_times(kind: pa.DataType) -> None:
    far = pa.array([2**62, None, 0], pa.int64()).view(kind)
    near = far[2].as_py()
    far_time = pa.array([2**62], pa.int64()).view(kind).to_numpy(zero_copy_only=False)[0]
    struct = pa.StructArray.from_arrays([far], ["at"])
    items = pa.array([[0, 1, 2]], pa.list_(pa.int32()))
    lists = pa.ListArray.from_arrays(items.offsets, far)
    maps = pa.MapArray.from_arrays(items.offsets, pa.array(["a", "b", "c"]), far)
    of = CollectSink()
    sink_writer = writer(of)
    sink_writer.write(pa.record_batch({"at": far, "inside": struct}))
    sink_writer.write(pa.record_batch({"lists": lists, "maps": maps}))
    commit(of, 1, sink_writer.prepare(1))
    first, second, third, last = of.rows()
    assert [first["at"], second["at"], third["at"]] == [far_time, None, near]
    assert [first["inside"], third["inside"]] == [{"at": far_time}, {"at": near}]
    assert last["lists"] == [far_time, None, near]
    assert last["maps"] == [("a", far_time), ("b", None), ("c", near)]


def test_output_of_another_sink_is_refused() -> None:
    with pytest.raises(JobRejected, match="restore with the former sink"):
        commit(CollectSink(), 1, [{"table": "t", "rows": 1}])


def test_limits_hold_for_a_subtask_and_for_the_collection() -> None:
    few, small = CollectSink(max_rows=3), CollectSink(max_bytes=2_000)
    with pytest.raises(JobRejected, match="max_rows: 4 exceeds the limit of 3"):
        writer(few).write(rows(1, 2, 3, 4))
    with pytest.raises(JobRejected, match="max_bytes"):
        writer(small).write(rows(*range(1_000)))
    first_writer, second_writer = writer(few), writer(few, index=1)
    first_writer.write(rows(1, 2))
    second_writer.write(rows(3, 4))
    with pytest.raises(JobRejected, match="write to a ParquetSink"):
        commit(few, 1, [*first_writer.prepare(1), *second_writer.prepare(1)])
    with pytest.raises(JobRejected, match="max_rows"):
        CollectSink(max_rows=0).check()


def test_a_copy_in_another_process_is_empty_and_a_job_of_the_console_is_refused() -> None:
    of = CollectSink()
    sink_writer = writer(of)
    sink_writer.write(rows(1))
    commit(of, 1, sink_writer.prepare(1))
    assert pickle.loads(pickle.dumps(of)).rows() == []
    assert of.rows() == [{"n": 1}]
    with pytest.raises(JobRejected, match="no caller"):
        of.bind("out", StageFolders("", streams="/streams"))


def test_a_local_job_returns_its_rows(tmp_path: Path) -> None:
    """A job without rows returns a table without columns."""
    sink, none = weir.CollectSink(), weir.CollectSink()
    flow = weir.Dataflow("local")
    numbers = flow.source("numbers", weir.SequenceSource(rows=1_000, keys=3, text_keys=True))
    numbers.key_by("key").aggregate("counts", {"n": weir.Count()}).sink("found", sink)
    numbers.map_batches("nothing", lambda batch: batch.slice(0, 0)).sink("none", none)
    weir.run_local(flow, parallelism=2, storage=str(tmp_path))
    last = {row["key"]: row["n"] for row in sorted(sink.rows(), key=lambda row: int(row["n"]))}
    assert last == {"key-0": 334, "key-1": 333, "key-2": 333}
    assert none.table().num_columns == 0


def test_a_job_with_too_many_rows_fails_by_name(tmp_path: Path) -> None:
    flow = weir.Dataflow("much")
    flow.source("numbers", weir.SequenceSource(rows=1_000)).sink("out", weir.CollectSink(max_rows=10))
    with pytest.raises(WeirError, match="exceeds the limit of 10"):
        weir.run_local(flow, storage=str(tmp_path))


def test_failed_attempts_neither_lose_nor_repeat_a_collected_row(tmp_path: Path) -> None:
    """S1-06: two crashes between checkpoints, then a drain."""
    source, bomb, sink = Gated(total=100), Bomb(), weir.CollectSink()
    flow = weir.Dataflow("collected")
    flow.source("numbers", source).map_batches("bomb", bomb).sink("out", sink)
    with running(flow.compile(2), tmp_path / "state", restart=weir.FixedDelay(attempts=9, delay_ms=20)) as run:
        for token in (2, 3):
            run.checkpoints(2)
            bomb.arm()
            source.total += 60
            run.wait_for(lambda token=token: run.records.token == token)  # type: ignore[misc]
        run.wait_for(lambda: positions_in(run.manifests[-1], tmp_path / "state", 4) == [source.total] * 4)
        run.end("drain")
    expected = sorted(
        ((v * 31 + split) % source.keys, v) for split in range(source.splits) for v in range(source.total)
    )
    assert sorted((row["key"], row["value"]) for row in sink.rows()) == expected
