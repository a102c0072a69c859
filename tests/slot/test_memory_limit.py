"""The memory bound of a slot: what exceeds it fails by name, counts as a failure, and takes nothing else with it."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import pyarrow as pa

from runtime.core.job.lifecycle import RunState
from runtime.core.job.restart_strategy import SLOT_OUT_OF_MEMORY_CODE, FixedDelay
from runtime.core.job.settings import JobSettings
from runtime.slot.memory_limit import MEGABYTE, MemoryWatch
from runtime.slot.process_tuning import resident_bytes
from tests.jobs.live import running
from tests.jobs.numbers import Numbers, counts

PATIENCE_S: Final = 60.0


def test_the_setting_is_in_mebibytes() -> None:
    assert JobSettings().slot_memory_bytes is None
    assert JobSettings(slot_memory_mb=512).slot_memory_bytes == 512 * MEGABYTE


def test_the_watch_reports_once_and_only_what_remains_after_freed_memory_is_given_back() -> None:
    looks = iter([90, 120, 80, 130, 110])  # the second and the fourth are above the bound; freeing helps once
    reported: queue.SimpleQueue[int] = queue.SimpleQueue()
    watch = MemoryWatch(100, reported.put, lambda: next(looks))
    watch.start()
    try:
        assert reported.get(timeout=PATIENCE_S) == 110
    finally:
        watch.close()
    assert list(looks) == []
    assert reported.empty()


#: The fence of a process of its own: what fits is allocated, Arrow's reservation too; a jump raises, and is not lost.
JUMP = """
import pyarrow as pa
from runtime.slot.memory_limit import limit_allocations

limit_allocations(256 << 20)
held = pa.array(range(1000)).cast("float64"), bytearray(200 << 20)
try:
    print(len(b"x" * (3 << 30)))
except MemoryError:
    print("refused", len(held[1]) >> 20)
limit_allocations(4 << 30)
try:
    print(len(b"x" * (3 << 30)))
except MemoryError:
    print("refused")
"""


def test_one_allocation_cannot_outrun_the_bound() -> None:
    """The first limit of a process stays, also where a later attempt computes a larger one."""
    process = subprocess.run([sys.executable, "-c", JUMP], capture_output=True, text=True, check=False)
    assert process.stdout.split() == ["refused", "200", "refused"], process.stderr


def test_a_slot_above_its_bound_fails_the_run_by_name_though_checkpoints_complete(tmp_path: Path) -> None:
    """What was checkpointed is restored, and is too large again: without a bound on restarts this never ends."""

    def trouble(batch: pa.RecordBatch) -> pa.RecordBatch:
        if any(manifest.token == run.records.token for manifest in run.manifests):
            block = bytearray(b"x") * (400 * MEGABYTE)  # the process may give memory of earlier tests back meanwhile
            threading.Event().wait(1.0)  # the watch does not wait for the end of a step
            del block
        return batch

    source = Numbers(total=50_000, batch=10, unbounded=True, slow_until=str(tmp_path / "never"))
    job = counts(source, tmp_path / "out", trouble).compile(1)
    bound = resident_bytes() + 200 * MEGABYTE
    restart = FixedDelay(attempts=1, delay_ms=30)
    with running(job, tmp_path / "state", restart=restart, slot_memory_bytes=bound) as run:
        run.wait_for(lambda: run.records.state is RunState.FAILED)
    failure = run.records.failure
    assert failure is not None
    assert (failure["code"], failure["tries"]) == (SLOT_OUT_OF_MEMORY_CODE, 2)
    (slot,) = run.records.live["slots"]
    assert slot["memory_bound_bytes"] == bound
    for text in (f"Slot 0 on host {slot['host']!r} uses ", f"above its bound of {bound // MEGABYTE} MB", "parallelism"):
        assert text in failure["message"]
    assert {manifest.token for manifest in run.manifests} == {1, 2}, "each attempt had completed a checkpoint"
    assert int(failure["message"].split(" uses ")[1].split()[0]) > bound // MEGABYTE


def test_an_allocation_that_fails_within_a_bound_names_the_operator(tmp_path: Path) -> None:
    def trouble(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise MemoryError

    job = counts(Numbers(total=10), tmp_path / "out", trouble).compile(1)
    with running(job, tmp_path / "state", slot_memory_bytes=1 << 40) as run:
        run.wait_for(lambda: run.records.state is RunState.FAILED)
    failure = run.records.failure
    assert failure is not None
    assert (failure["code"], failure["operator"]) == (SLOT_OUT_OF_MEMORY_CODE, "trouble")
    assert "operator 'trouble', subtask 0" in failure["message"]
    assert f"bound of {(1 << 40) // MEGABYTE} MB" in failure["message"]
    assert failure["message"].count("slot_memory_mb") == 1
