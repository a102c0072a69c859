"""W8: how runs are paired and told, and a stopped world that really stands still."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks import disk
from benchmarks.figures import MEASUREMENT_MODULES, MeasurementPlan, measurement
from benchmarks.intervals import measure as intervals
from benchmarks.intervals.report import ALIGNED, BEHIND, STOP_THE_WORLD, Sample, pair_runs, report
from benchmarks.intervals.stop_the_world import StopTheWorld
from benchmarks.slots import JobRun
from benchmarks.slots import run as run_job
from benchmarks.systems.weir import TOTALS
from benchmarks.workloads.windows import totals
from runtime.connectors.sinks.discard import DiscardSink
from runtime.connectors.sources.sequence import SequenceReader, SequenceSource
from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.builder import Dataflow
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.local import LocalLauncher, run_local
from runtime.ports import Source
from runtime.run_store import CompletedCheckpoint

OFTEN = CoordinatorSettings(interval_ms=20, min_pause_ms=0)

happened: list[str] = []


@pytest.fixture(autouse=True)
def nothing_happened() -> Iterator[None]:
    happened.clear()
    yield
    happened.clear()


class WatchedReader(SequenceReader):
    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        happened.append("polled")
        return super().poll(1_000)


@dataclass(frozen=True, kw_only=True)
class WatchedSource(SequenceSource):
    def reader(self) -> WatchedReader:
        return WatchedReader(self)


def passed(batch: pa.RecordBatch) -> pa.RecordBatch:
    happened.append("passed")
    return batch


@dataclass
class SlowRecords(MemoryRunStore):
    """While it records, every subtask has given its snapshot, and none knows yet that the checkpoint is complete."""

    meanwhile: list[list[str]] = field(default_factory=list)

    def record_checkpoint(self, completed: CompletedCheckpoint) -> bool:
        before = len(happened)
        time.sleep(0.05)
        self.meanwhile.append(happened[before:])
        return super().record_checkpoint(completed)


def watched(source: Source, storage: Path) -> list[list[str]]:
    """What happened while each checkpoint was being recorded, the last one left out: then nothing is left to do."""
    flow = Dataflow("watched")
    rows = flow.source("numbers", source).map_batches("seen", passed)
    rows.key_by("key").aggregate("totals", TOTALS).sink("out", DiscardSink())
    records = SlowRecords()
    run_local(flow, parallelism=2, storage=str(storage), settings=OFTEN, records=records)
    return records.meanwhile[:-1]


def test_no_row_passes_while_the_world_is_stopped(tmp_path: Path) -> None:
    source = WatchedSource(duration_ms=2_000, keys=10)
    during = watched(StopTheWorld(source), tmp_path / "stopped")
    assert len(during) > 2
    assert not any(during)
    assert {"polled", "passed"} == set(happened), "between checkpoints rows do pass"
    during = watched(source, tmp_path / "aligned")
    assert any("passed" in events for events in during), "without the wrapper the job works on meanwhile"


totals_once = cache(totals)


def run(seconds: float, rows: int = 3_000_000, **changes: Any) -> JobRun:
    counted = dict(totals_once(rows, 100_003))
    phases = {"start_delay": 1.0, "alignment": 2.0, "sync": 3.0, "async": 4.0}
    values = {"cpu_seconds": 2 * seconds, "checkpoints": 5, "failed": 0, "checkpoint_ms": 12.0, "late_rows": 0}
    return JobRun(seconds=seconds, phases_ms=phases, counted=counted, **{**values, **changes})


def sample(turn: int, group: int, interval_ms: int | None, mode: str, ran: JobRun) -> Sample:
    return Sample(round=turn, group=group, interval_ms=interval_ms, mode=mode, rows=3_000_000, run=ran)


def found(aligned: float, stopped: float) -> list[Sample]:
    """Four rounds in which the machine becomes slower and slower; ratios do not care."""
    samples = []
    for turn in range(4):
        slow = 1.0 + turn
        for group, interval_ms in enumerate((1_000, 100)):
            samples += [
                sample(turn, group, None, ALIGNED, run(slow)),
                sample(turn, group, interval_ms, ALIGNED, run(slow * aligned)),
                sample(turn, group, interval_ms, STOP_THE_WORLD, run(slow * stopped)),
            ]
    return samples


def test_each_run_is_compared_with_the_one_beside_it() -> None:
    samples = found(1.01, 1.5)
    pairs = pair_runs(samples, (100, STOP_THE_WORLD), (None, ALIGNED))
    assert [(run.seconds, other.seconds) for run, other in pairs] == [(1.5, 1), (3.0, 2), (4.5, 3), (6.0, 4)]


def test_the_report_tells_ratios_targets_and_what_a_checkpoint_took() -> None:
    """S4-53: over the interval."""
    result = report(found(1.015, 1.5), [disk.DiskCost(act="write", median_ms=1.5, p99_ms=9.0)], 100_003)
    figures = {figure.name: figure for figure in result.figures}
    assert figures["time to none, 1,000 ms aligned"].value == pytest.approx(1.015)
    assert figures["time to none, 1,000 ms aligned"].is_met is True
    assert figures["time to none, 100 ms aligned"].at_most == 1.10
    assert figures["time to none, 100 ms stop-the-world"].is_met is None
    assert figures["time of stop-the-world to aligned, 100 ms"].value == pytest.approx(1.5 / 1.015)
    assert figures["time of stop-the-world to aligned, 100 ms"].is_met is True
    assert "disk: write: median 1.50 ms, p99 9.00 ms" in result.lines
    assert result.wrong == ()
    missed = report(found(1.2, 1.2), [], 100_003)
    assert [figure.is_met for figure in missed.figures if figure.is_met is not None] == [False, False, False]


def test_runs_with_event_time_behind_are_compared_with_each_other() -> None:
    behind = [sample(0, 9, interval_ms, BEHIND, run(seconds)) for interval_ms, seconds in ((None, 2.0), (100, 3.0))]
    figures = {figure.name: figure for figure in report([*found(1.0, 1.5), *behind], [], 100_003).figures}
    assert figures["time to none, 100 ms event time behind"].value == 1.5
    assert figures["time to none, 100 ms event time behind"].is_met is False
    assert "time to none, 1,000 ms event time behind" not in figures


def test_a_source_behind_closes_no_window_early(tmp_path: Path) -> None:
    flow = intervals.job(2_000_000, BEHIND)
    run = run_job(flow, 2, LocalLauncher(), str(tmp_path), CoordinatorSettings(interval_ms=100, min_pause_ms=0))
    assert (run.counted, run.late_rows) == (totals(2_000_000, intervals.KEYS), 0)


def test_a_run_that_counted_something_else_is_wrong() -> None:
    samples = found(1.0, 1.0)
    samples[1].run.counted["sum_of_count"] -= 1
    result = report(samples, [], 100_003)
    assert result.wrong == ("round 1, 1000 ms aligned: sum_of_count is 2999999, not 3000000",)


def test_every_round_has_each_setting_once_and_begins_with_another(tmp_path: Path) -> None:
    group = intervals.INTERVAL_GROUPS[0]
    rounds = [intervals.settings_of(group, turn) for turn in range(5)]
    assert all(len(set(settings)) == len(settings) == 5 for settings in rounds)
    assert len({settings[0] for settings in rounds}) == 5
    assert intervals.steps(MeasurementPlan(folder=tmp_path, rounds=1)) == 2 + 5 + 3 + 3 + 3 + 3


def test_a_job_is_run_timed_and_counted(tmp_path: Path) -> None:
    """On threads here, which changes nothing in how it is measured."""
    flow = intervals.job(2_000_000, STOP_THE_WORLD)
    run = run_job(flow, 2, LocalLauncher(), str(tmp_path), CoordinatorSettings(interval_ms=30, min_pause_ms=0))
    assert run.counted == totals(2_000_000, intervals.KEYS)
    assert run.checkpoints > 1
    assert run.seconds > 0
    assert run.cpu_seconds > 0


def test_what_the_disk_costs_is_told_of_files_and_folders(tmp_path: Path) -> None:
    costs = disk.costs(tmp_path, times=3)
    assert len({cost.act for cost in costs}) == 3
    assert all(0 < cost.median_ms <= cost.p99_ms for cost in costs)
    assert len(list(tmp_path.iterdir())) == 6


def test_every_measurement_has_the_common_form(tmp_path: Path) -> None:
    for name in MEASUREMENT_MODULES:
        module = measurement(name)
        assert module.TITLE
        assert module.TIME_BOX_S > 0
        assert module.steps(MeasurementPlan(folder=tmp_path, rounds=1)) > 0
