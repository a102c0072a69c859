"""Jobs on Spark slots, run in sequence on a single Spark session with its worker processes.

Run records are in memory instead of Postgres. The measured time is from the state "running" to the record of the last
checkpoint. Processor time covers the same period, for this process and all its descendants (JVM and workers).
"""

import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.child import CpuMeter
from runtime.clock import SystemClock
from runtime.connectors.sinks.discard import STATE_NAME, totals
from runtime.core.job.ids import OperatorId
from runtime.core.job.lifecycle import RunEvent, RunState
from runtime.core.job.restart_strategy import NoRestart
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.dataflow.builder import Dataflow
from runtime.errors import WeirError
from runtime.io.filesystem import FileStore
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.slot_pool import SlotPoolLauncher
from runtime.master.config import MasterConfig
from runtime.master.job_master import JobMaster
from runtime.operators.late_rows import LATE_RECORDS_COUNTER
from runtime.run_store import CompletedCheckpoint

PHASES: Final = ("start_delay", "alignment", "sync", "async")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """The measurements of a job from start to end."""

    seconds: float
    cpu_seconds: float
    checkpoints: int
    failed: int  #: number of failed checkpoints
    checkpoint_ms: float  #: from trigger to manifest, median
    phases_ms: dict[str, float]  #: by phase, the longest over all subtasks; median over checkpoints
    counted: dict[str, int]  #: totals of a counting sink; empty for other sinks
    late_rows: int  #: rows that windows have dropped


class _TimedRunStore(MemoryRunStore):
    """Notes the times of "running" and of the last recorded checkpoint, and the processor time in between."""

    running_at = recorded_at = cpu_seconds = _cpu_before = 0.0

    def __init__(self, last_checkpoint: Path | None = None) -> None:
        super().__init__()
        self._meter = CpuMeter(os.getpid())
        self._last_checkpoint = last_checkpoint
        checkpoint = 0
        if last_checkpoint is not None and last_checkpoint.exists():
            self.restore_from, checkpoint, token = json.loads(last_checkpoint.read_text())
            self.reserve_ids_above(checkpoint, token)
        self._note(self.restore_from, checkpoint)

    def change_state(
        self, event: RunEvent, failure: Mapping[str, Any] | None = None, savepoint: int | None = None
    ) -> RunState | None:
        if event is RunEvent.DEPLOYED:
            self._cpu_before = self._meter.sample()
            self.running_at = time.monotonic()
        return super().change_state(event, failure, savepoint)

    def record_checkpoint(self, completed: CompletedCheckpoint) -> bool:
        self.recorded_at = time.monotonic()
        manifest = completed.manifest
        if len(manifest.finished_operators()) == len(manifest.operators):  # the last checkpoint: workers still live
            self.cpu_seconds = self._meter.sample() - self._cpu_before
        self._note(completed.folder, manifest.checkpoint)
        return super().record_checkpoint(completed)

    def _note(self, folder: str | None, checkpoint: int) -> None:
        if self._last_checkpoint is not None:
            unfinished = self._last_checkpoint.with_suffix(".tmp")
            unfinished.write_text(json.dumps([folder, checkpoint, self.token]))
            unfinished.rename(self._last_checkpoint)


def run(
    flow: Dataflow,
    parallelism: int,
    launcher: SlotPoolLauncher,
    storage: str,
    settings: CoordinatorSettings,
    last_checkpoint: Path | None = None,
) -> JobRun:
    """Runs the job to its end. Counts the rows that a discarding sink named "out" has received.

    Args:
        last_checkpoint: a file with the token and the last recorded checkpoint, for a process that goes on after a
            SIGKILL of this process. If it exists, the job has a newer token and is restored from that checkpoint.

    Raises:
        WeirError: the job did not finish.
    """
    records = _TimedRunStore(last_checkpoint)
    config = MasterConfig(
        job_id=flow.name,
        token=records.token,
        job=flow.compile(parallelism),
        storage=storage,
        host=launcher.host,
        coordinator=settings,
        restart=NoRestart(),  # the measured time is of a single attempt over all rows
    )
    JobMaster(config, records, FileStore(storage), launcher, SystemClock()).run()
    if records.state is not RunState.FINISHED:
        raise WeirError(f"the job ended as {records.state}: {records.failure}")
    return JobRun(
        seconds=records.recorded_at - records.running_at,
        cpu_seconds=records.cpu_seconds,
        checkpoints=len(records.completed),
        failed=sum(report.reason is not None for report in records.reports),
        checkpoint_ms=statistics.median(each.at - each.manifest.triggered_at for each in records.completed),
        phases_ms={phase: statistics.median(_max_phase_ms(c, phase) for c in records.completed) for phase in PHASES},
        counted=_sink_totals(records.completed),
        late_rows=records.live.get("counters", {}).get(LATE_RECORDS_COUNTER, 0),
    )


def _sink_totals(every: Sequence[CompletedCheckpoint]) -> dict[str, int]:
    """The totals of the sink's discarded rows by name, from the manifests; empty without state."""
    last: dict[int, SubtaskSnapshot] = {}
    for completed in every:
        out = completed.manifest.operators.get(OperatorId("out"))
        last |= {} if out is None else out.subtasks
    entries = [entry for snapshot in last.values() for entry in snapshot.lists.get(STATE_NAME, ())]
    rows, sums = totals(entries)
    return {"rows_out": rows, **{f"sum_of_{name}": value for name, value in sums.items()}} if entries else {}


def _max_phase_ms(completed: CompletedCheckpoint, phase: str) -> float:
    return max(float(operator[f"max_{phase}_ms"]) for operator in completed.operators)
