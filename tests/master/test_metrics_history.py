"""The intervals of an attempt's history against the samples that they were made from."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from runtime.connectors.sinks.discard import DiscardSink
from runtime.core.job.graph import JobGraph
from runtime.core.job.ids import OperatorId, SubtaskId, Token
from runtime.core.job.messages import MAX_WATERMARK, MIN_WATERMARK, CheckpointKind
from runtime.core.snapshot.manifest import Manifest, SnapshotTimings
from runtime.dataflow.builder import Dataflow
from runtime.io.control.messages import SubtaskMetrics, SubtaskStatus
from runtime.master.metrics_history import INTERVAL_MS, MAX_PENDING, MetricsHistory, ProcessUsage
from runtime.run_store import MetricsInterval
from tests.jobs.numbers import Numbers

START = 1_700_000_001_000  #: 1 s into an interval
NUMBERS, OUT = OperatorId("numbers"), OperatorId("out")


def graph() -> JobGraph:
    flow = Dataflow("two")
    flow.source("numbers", Numbers(total=1)).sink("out", DiscardSink())
    return flow.compile(2).graph


GRAPH = graph()


def metrics(uid: OperatorId, index: int, **numbers: float) -> SubtaskMetrics:
    nothing = SubtaskMetrics(SubtaskId(uid, index), SubtaskStatus.RUNNING, 0, 0, MIN_WATERMARK, 0.0, 0.0, {})
    return msgspec.structs.replace(nothing, **numbers)


def row(interval: MetricsInterval, operator: str) -> dict[str, Any]:
    return next(row for row in interval.rows if row["operator"] == operator)


STEPS = st.lists(
    st.tuples(
        st.integers(1, 3_000),  # ms since the sample before
        st.tuples(st.integers(0, 100), st.integers(0, 100)),  # rows of each source subtask
        st.floats(0, 500),  # busy ms of the first
        st.integers(0, 1_000),  # bytes in flight to the sink
    ),
    min_size=1,
    max_size=30,
)


@given(STEPS)
def test_intervals_add_up_to_the_totals_of_the_attempt(steps: list[tuple[int, tuple[int, int], float, int]]) -> None:
    """Each row is in one interval, spans follow each other without a gap, and peaks are the highest of all samples."""
    history, now, totals, busy, peak = MetricsHistory(GRAPH, START), START, [0, 0], 0.0, 0
    samples = {}
    for passed, rows, more_busy, waiting in steps:
        now, busy, peak = now + passed, busy + more_busy, max(peak, waiting)
        totals = [total + increase for total, increase in zip(totals, rows, strict=True)]
        samples = {
            NUMBERS: [
                metrics(NUMBERS, i, records_out=totals[i], bytes_out=8 * totals[i], busy_ms=busy) for i in (0, 1)
            ],
            OUT: [metrics(OUT, i, records_in=totals[i], in_flight_bytes=waiting) for i in (0, 1)],
        }
        history.sample(samples, {"p": ProcessUsage(10, now - START)}, now)
    history.end(samples, {"p": ProcessUsage(10, now - START)}, now)
    intervals = history.pending()
    runs = [row(interval, "") for interval in intervals]
    assert sum(each["span_ms"] for each in runs) == now - START
    for name, expected in (("records_in", sum(totals)), ("records_out", sum(totals)), ("bytes_in", 8 * sum(totals))):
        assert sum(each[name] for each in runs) == expected
    assert max(row(interval, "out")["in_flight_bytes"] for interval in intervals) == 2 * peak
    starts = [interval.at for interval in intervals]
    assert all(start % INTERVAL_MS == 0 for start in starts)
    assert starts == sorted(set(starts))
    assert all(0 <= row(interval, "numbers")["busy"] <= 1 for interval in intervals)
    columns = [interval.subtasks[NUMBERS]["records_out"] for interval in intervals]
    assert [sum(each) for each in zip(*columns, strict=True)] == totals


def test_an_interval_holds_increases_and_not_totals() -> None:
    """S2-53: a rate from it is right after a restart too, since an attempt counts from zero."""
    history = MetricsHistory(GRAPH, START)
    for second in range(1, 11):
        source = [
            metrics(NUMBERS, 0, records_out=300 * second, busy_ms=500.0 * second, blocked_ms=250.0 * second),
            metrics(NUMBERS, 1, records_out=100 * second),
        ]
        history.sample({NUMBERS: source}, {"p": ProcessUsage(second, 700.0 * second)}, START + 1_000 * second)
    first, second_interval = history.pending()
    assert (first.at, second_interval.at) == (START - 1_000, START + 4_000)
    assert [row(each, "numbers")["span_ms"] for each in (first, second_interval)] == [4_000, 5_000]
    assert [row(each, "numbers")["records_out"] for each in (first, second_interval)] == [1_600, 2_000]
    values = row(second_interval, "numbers")
    assert (values["busy"], values["backpressured"], values["skew"]) == (0.25, 0.125, 1.5)
    assert (row(second_interval, "")["cpu_ms"], row(second_interval, "")["memory_bytes"]) == (3_500, 9)
    assert row(first, "")["cpu_ms"] == 2_100, "the first sample of a process is its base"


def test_the_commit_of_an_interval_is_that_of_its_longest_checkpoint() -> None:
    """S2-53."""
    history = MetricsHistory(GRAPH, START)
    manifest = Manifest(
        job="1", checkpoint=1, kind=CheckpointKind.CHECKPOINT, token=Token(1), triggered_at=START,
        max_parallelism=128, operators={},
    )  # fmt: skip
    timings = [(SubtaskId(NUMBERS, 0), SnapshotTimings(async_ms=40.0))]
    for duration_ms, commit_ms in ((90, 80), (300, 20), (200, 70)):
        history.on_checkpoint(manifest, timings, duration_ms, commit_ms)
    history.sample({NUMBERS: [metrics(NUMBERS, 0)]}, {}, START + 4_000)
    (interval,) = history.pending()
    assert (row(interval, "")["checkpoint_ms"], row(interval, "")["commit_ms"]) == (300, 20)


def test_the_phases_of_an_interval_are_those_of_the_slowest_subtask_in_its_longest_checkpoint() -> None:
    """Longest phases of different subtasks add up to more than the checkpoint took; no subtask had such phases."""
    history = MetricsHistory(GRAPH, START)
    manifest = Manifest(
        job="1", checkpoint=1, kind=CheckpointKind.CHECKPOINT, token=Token(1), triggered_at=START,
        max_parallelism=128, operators={},
    )  # fmt: skip
    late = SnapshotTimings(start_delay_ms=80.0, alignment_ms=3.0, sync_ms=2.0, async_ms=11.0)
    large = SnapshotTimings(start_delay_ms=28.0, alignment_ms=48.0, async_ms=161.0)
    history.on_checkpoint(manifest, [(SubtaskId(OUT, 0), late), (SubtaskId(NUMBERS, 1), large)], 300, 20)
    history.on_checkpoint(manifest, [(SubtaskId(OUT, 0), SnapshotTimings(sync_ms=90.0))], 100, 10)
    history.sample({NUMBERS: [metrics(NUMBERS, 0)], OUT: [metrics(OUT, 0)]}, {}, START + 4_000)
    (interval,) = history.pending()
    job_row, out = row(interval, ""), row(interval, "out")
    columns = ("start_delay_ms", "alignment_ms", "pre_barrier_ms", "sync_ms", "async_ms")
    assert [job_row[column] for column in columns] == [28, 48, 0, 0, 161]
    assert (out["start_delay_ms"], out["sync_ms"]) == (80, 90), "an operator has the longest of each phase"


def test_a_clock_that_is_set_back_loses_no_rows_and_ends_no_history() -> None:
    history = MetricsHistory(GRAPH, START)
    times = (START + 1_000, START - 3_600_000, START - 3_599_000, START - 3_594_000)
    for number, at in enumerate(times, 1):
        history.sample({NUMBERS: [metrics(NUMBERS, 0, records_out=number)]}, {}, at)
    (interval,) = history.pending()
    assert interval.at == START - 3_601_000
    assert (row(interval, "numbers")["records_out"], row(interval, "numbers")["span_ms"]) == (4, 6_000)


def test_lags_are_behind_the_clock_and_behind_the_newest_event() -> None:
    history, now = MetricsHistory(GRAPH, START), START + 4_000
    samples = {
        NUMBERS: [metrics(NUMBERS, 0, watermark=now - 500), metrics(NUMBERS, 1, watermark=now - 900)],
        OUT: [metrics(OUT, 0, watermark=now - 2_000), metrics(OUT, 1, watermark=now - 700)],
    }
    history.sample(samples, {}, now)
    (interval,) = history.pending()
    source, sink, run = (row(interval, uid) for uid in ("numbers", "out", ""))
    assert (source["watermark"], source["processing_lag_ms"], source["event_lag_ms"]) == (now - 900, 900, 400)
    assert (sink["watermark"], sink["processing_lag_ms"], sink["event_lag_ms"]) == (now - 2_000, 2_000, 1_500)
    assert (run["watermark"], run["processing_lag_ms"], run["event_lag_ms"]) == (now - 2_000, 2_000, 1_500)


def test_there_is_no_lag_before_the_first_watermark_and_after_the_last() -> None:
    history = MetricsHistory(GRAPH, START)
    samples = {
        NUMBERS: [metrics(NUMBERS, 0, watermark=MAX_WATERMARK), metrics(NUMBERS, 1, watermark=5)],
        OUT: [metrics(OUT, 0), metrics(OUT, 1, watermark=5)],
    }
    history.sample(samples, {}, START + 4_000)
    (interval,) = history.pending()
    assert {row(interval, uid)["processing_lag_ms"] for uid in ("numbers", "out")} == {None}


def test_what_the_database_does_not_take_is_kept_up_to_a_limit() -> None:
    history, now = MetricsHistory(GRAPH, START), START
    for _ in range(MAX_PENDING + 5):
        now += INTERVAL_MS
        history.sample({NUMBERS: [metrics(NUMBERS, 0)]}, {}, now)
    intervals = history.pending()
    assert len(intervals) == MAX_PENDING
    assert intervals[-1].at == (now - INTERVAL_MS) // INTERVAL_MS * INTERVAL_MS
    history.sample({NUMBERS: [metrics(NUMBERS, 0)]}, {}, now + INTERVAL_MS)  # drops the oldest meanwhile
    history.on_written(intervals[:3])
    assert history.pending()[0] is intervals[3]
    history.on_written(intervals)
    assert len(history.pending()) == 1
