"""One program over bounded and unbounded input, record by record, while its source goes on."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.checkpoint import FinishedState
from runtime.core.coordinator import CoordinatorSettings
from runtime.core.lifecycle import RunState
from runtime.dataflow import Dataflow
from runtime.hosts.local import run_local
from runtime.operators.aggregates import Count, Sum
from tests.hosts.jobs import Numbers, committed, counts, expected_counts, final_counts
from tests.hosts.live import FAST, running


def updates(output: Path) -> dict[int, list[tuple[int, int]]]:
    """The series of results of each key, in the order in which they were put out (one subtask writes)."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in committed(output):
        found[row["key"]].append((row["n"], row["total"]))
    return {key: sorted(series) for key, series in found.items()}


def test_one_program_reads_bounded_and_unbounded_input(tmp_path: Path) -> None:
    """S0-01, S0-06, S0-23: the same flow, the same results, by checkpoints in both; the author does nothing for it."""
    bounded, unbounded = (Numbers(total=6_000, batch=5, unbounded=endless) for endless in (False, True))
    records = run_local(counts(bounded, tmp_path / "bounded"), storage=str(tmp_path / "b"), settings=FAST)
    with running(counts(unbounded, tmp_path / "unbounded").compile(1), tmp_path / "u") as run:
        run.wait_for(lambda: final_counts(tmp_path / "unbounded") == expected_counts(unbounded))
        run.end("stop")
    assert updates(tmp_path / "bounded") == updates(tmp_path / "unbounded")
    assert final_counts(tmp_path / "bounded") == expected_counts(bounded)
    assert records.state is RunState.FINISHED
    assert len(records.completed) > 1, "checkpoints were taken on the way, not only at the end"
    assert records.completed[-1].manifest.finished_operators() == ("numbers", "counts", "out")
    assert {o.finished for m in run.manifests for o in m.operators.values()} == {FinishedState.RUNNING}


def test_results_follow_the_arrival_of_records_one_by_one(tmp_path: Path) -> None:
    """S0-02: each record updates the state of its key, and its result leaves at once, in the order of arrival."""
    source = Numbers(total=150, splits=3, batch=1)
    seen: list[tuple[int, int]] = []

    def note(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.extend((row["key"], row["value"]) for row in batch.to_pylist())
        return batch

    flow = Dataflow("one by one")
    numbers = flow.source("numbers", source).map_batches("arrival", note)
    counted = numbers.key_by("key").aggregate("counts", {"n": Count(), "total": Sum("value")})
    counted.sink("out", ParquetSink(str(tmp_path / "out")))
    run_local(flow, storage=str(tmp_path / "state"), settings=CoordinatorSettings(interval_ms=None))
    state: dict[int, tuple[int, int]] = {}
    expected: list[dict[str, Any]] = []
    for key, value in seen:
        n, total = state.get(key, (0, 0))
        state[key] = (n + 1, total + value)
        expected.append({"key": key, "n": n + 1, "total": total + value})
    assert committed(tmp_path / "out") == expected
    assert seen != sorted(seen), "keys arrive in no order"
    assert state == expected_counts(source)


def test_records_reach_the_sink_before_the_source_has_ended(tmp_path: Path) -> None:
    """S4-06: data is pipelined along the edges."""
    source = Numbers(total=500, batch=10, unbounded=True)
    with running(counts(source, tmp_path / "out").compile(2), tmp_path / "state") as run:
        run.wait_for(lambda: committed(tmp_path / "out"))
        run.wait_for(lambda: run.operator("out").get("records_in", 0) > 0)
        assert run.operator("numbers")["state"] == "running"
        assert not run.manifests[-1].finished_operators()
