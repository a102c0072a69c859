"""L1: every row is noted once, and the percentiles are those of its times."""

import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import weir
from benchmarks.latency import flink
from benchmarks.latency.flink import VARIANTS
from benchmarks.latency.job import JOBS, Pace, arrivals, job
from benchmarks.latency.report import (
    RATES,
    TARGETS_MS,
    WARM_UP_S,
    Latency,
    PeerLatency,
    latency,
    peer_latency,
    report,
)
from benchmarks.latency.spark import Batch, batch_of


def test_each_row_arrives_after_it_is_due_and_is_committed_later(tmp_path: Path) -> None:
    pace = Pace(rate=2_000, seconds=0.5, began_s=time.time() + 0.2)
    weir.run_local(job("stateless", pace, str(tmp_path)), parallelism=2, storage=str(tmp_path / "state"))
    parts = [(np.load(path), float(path.with_suffix(".committed").read_text())) for path in tmp_path.glob("*.npz")]
    assert sorted(np.concatenate([noted["ids"] for noted, _ in parts])) == list(range(1_000))
    for noted, committed in parts:
        assert (noted["arrived"] >= pace.due_s(noted["ids"])).all()
        assert noted["arrived"].max() <= committed


def test_percentiles_leave_out_the_warm_up(tmp_path: Path) -> None:
    pace = Pace(rate=100, seconds=WARM_UP_S + 2, began_s=1_000.0)
    ids = np.arange(pace.rows)
    delays = np.where(ids < 100 * WARM_UP_S, 9.0, np.where(ids % 100 == 99, 0.5, 0.01))
    np.savez(tmp_path / "0-1", ids=ids, arrived=pace.due_s(ids) + delays)
    (tmp_path / "0-1.committed").write_text(repr(pace.began_s + pace.seconds))
    noted = arrivals(tmp_path)
    result = latency("stateless", pace, noted, 7.0)
    assert (result.uncommitted["p50"], result.uncommitted["p99.9"]) == (10.0, 500.0)
    assert result.committed["p50"] == pytest.approx(1_005, abs=20)
    assert (len(result.series), max(result.series[:9]), result.rows) == (20, 10.0, pace.rows)
    peer = peer_latency("stateless", pace, "Flink", noted)
    assert (peer.uncommitted, peer.committed) == (result.uncommitted, result.committed)


def measured(job: str, p99: float) -> Latency:
    shares = {"p50": 1.0, "p90": 2.0, "p99": p99, "p99.9": 40.0}
    return Latency(
        job=job, rate=100_000, uncommitted=shares, committed=shares, checkpoint_ms=9.0, series=(1.0,), commits=(0.5,),
        rows=5, expected=2_400_000, label="100,000 rows/s",
    )  # fmt: skip


def of_peer(system: str, p99: float) -> PeerLatency:
    shares = {"p99": p99}
    return PeerLatency(job="running", rate=100_000, system=system, uncommitted=shares, committed=shares)


def test_a_goal_is_missed_by_a_slow_row_and_lost_rows_are_wrong() -> None:
    assert ("stateless", 100_000) in TARGETS_MS
    assert 100_000 in RATES
    result = report([measured("stateless", 20.5)])
    (goal,) = [figure for figure in result.figures if figure.at_most is not None]
    assert goal.is_met is False
    assert result.wrong == ("5 rows of 2,400,000",)


def test_the_ratio_to_flink_is_that_to_the_median_of_its_best_settings() -> None:
    slow, fast = (variant.title for variant in VARIANTS if variant.job == "running" and not variant.buffer_timeout_ms)
    peers = [of_peer(slow, 100.0), of_peer("Structured Streaming", 1.0)]
    peers += [of_peer(fast, p99) for p99 in (10.0, 90.0, 20.0)]
    figures = {figure.name: figure for figure in report([measured("running", 30.0)], peers).figures}
    assert figures[f"running, 100,000 rows/s: {fast}, p99"].value == 20.0
    ratio = figures["running, 100,000 rows/s: p99 to that of Flink, best of the settings tried"]
    assert (ratio.value, ratio.is_met) == (1.5, False)


def test_rows_that_flink_has_not_committed_have_no_time_of_commit(tmp_path: Path) -> None:
    np.array([[7, 1_500_000], [9, 2_000_000], [8, 2_500_000]], ">i8").tofile(tmp_path / "0.rows")
    np.array([[1, 3_000_000], [2, 4_000_000]], ">i8").tofile(tmp_path / "0.commits")
    np.array([[3, 1_000_000]], ">i8").tofile(tmp_path / "1.rows")
    np.array([], ">i8").tofile(tmp_path / "1.commits")
    rows = flink.arrivals(tmp_path)
    assert rows.ids.tolist() == [7, 9, 8, 3]
    assert rows.arrived.tolist() == [1.5, 2.0, 2.5, 1.0]
    np.testing.assert_equal(rows.committed, [3.0, 4.0, np.nan, np.nan])


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(not flink.libraries(), reason="Flink is not installed")
@pytest.mark.parametrize("job", sorted(JOBS))
def test_each_row_arrives_in_flink_after_it_is_due_and_is_committed_later(job: str, tmp_path: Path) -> None:
    variant = next(each for each in VARIANTS if each.job == job)
    with flink.cluster(tmp_path) as cluster:
        pace = Pace(rate=10_000, seconds=2.0, began_s=time.time() + 1)
        rows = cluster.run(variant, pace, tmp_path / "run")
    assert sorted(rows.ids) == list(range(pace.rows))
    assert (rows.arrived >= pace.due_s(rows.ids)).all()
    assert (rows.committed >= rows.arrived).all()


def test_a_batch_of_the_peer_is_visible_when_it_has_ended() -> None:
    source = SimpleNamespace(startOffset='{"id": 5}', endOffset='{"id": 9}')
    progress = SimpleNamespace(
        sources=[source], timestamp="2026-01-01T00:00:01.500Z", durationMs={"triggerExecution": 250}
    )
    began = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    batch = batch_of(progress)
    assert batch == Batch(first=5, end=9, at=began + 1.75)
    assert batch.arrivals().ids.tolist() == [5, 6, 7, 8]
    assert set(batch.arrivals().committed) == {began + 1.75}
