"""L1: every row is noted once, and the percentiles are those of its times."""

import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import weir
from benchmarks.latency.job import Pace, job
from benchmarks.latency.measure import RATES, TARGETS_MS, WARM_UP_S, Latency, latency, report
from benchmarks.latency.spark import Batch, batch_of


def test_each_row_arrives_after_it_is_due_and_is_committed_later(tmp_path: Path) -> None:
    pace = Pace(rate=2_000, seconds=0.5, began_s=time.time() + 0.2)
    weir.run_local(job("stateless", pace, str(tmp_path)), parallelism=2, storage=str(tmp_path / "state"))
    found = [(np.load(path), float(path.with_suffix(".committed").read_text())) for path in tmp_path.glob("*.npz")]
    assert sorted(np.concatenate([noted["ids"] for noted, _ in found])) == list(range(1_000))
    for noted, committed in found:
        assert (noted["arrived"] >= pace.due_s(noted["ids"])).all()
        assert noted["arrived"].max() <= committed


def test_percentiles_leave_out_the_warm_up(tmp_path: Path) -> None:
    pace = Pace(rate=100, seconds=WARM_UP_S + 2, began_s=1_000.0)
    ids = np.arange(pace.rows)
    delays = np.where(ids < 100 * WARM_UP_S, 9.0, np.where(ids % 100 == 99, 0.5, 0.01))
    np.savez(tmp_path / "0-1", ids=ids, arrived=pace.due_s(ids) + delays)
    (tmp_path / "0-1.committed").write_text(repr(pace.began_s + pace.seconds))
    found = latency("stateless", pace, tmp_path, 7.0)
    assert (found.uncommitted["p50"], found.uncommitted["p99.9"]) == (10.0, 500.0)
    assert found.committed["p50"] == pytest.approx(1_005, abs=20)
    assert (len(found.series), max(found.series[:9]), found.rows) == (20, 10.0, pace.rows)


def test_a_goal_is_missed_by_a_slow_row_and_lost_rows_are_wrong() -> None:
    shares = {"p50": 1.0, "p90": 2.0, "p99": 20.5, "p99.9": 40.0}
    slow = Latency(
        job="stateless", rate=100_000, uncommitted=shares, committed=shares, checkpoint_ms=9.0, series=(1.0,),
        commits=(0.5,), rows=5, expected=2_400_000, label="100,000 rows/s",
    )  # fmt: skip
    assert ("stateless", 100_000) in TARGETS_MS
    assert 100_000 in RATES
    found = report([slow])
    (goal,) = [figure for figure in found.figures if figure.at_most is not None]
    assert goal.is_met is False
    assert found.wrong == ("5 rows of 2,400,000",)


def test_a_batch_of_the_peer_is_visible_when_it_has_ended() -> None:
    source = SimpleNamespace(startOffset='{"id": 5}', endOffset='{"id": 9}')
    progress = SimpleNamespace(
        sources=[source], timestamp="2026-01-01T00:00:01.500Z", durationMs={"triggerExecution": 250}
    )
    began = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    assert batch_of(progress) == Batch(first=5, end=9, at=began + 1.75)
