"""Each part of the barrier runtime once on a real Spark: slots are processes, channels Unix sockets, kills real.

One session for all stories. Whatever befalls a job, its output is compared with an answer worked out without it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from runtime.core.attempt.events import OperationRequest
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import RunState
from runtime.core.job.messages import CheckpointKind
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.manifest import FinishedState
from runtime.dataflow.plan import CompiledJob
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.spark import SparkLauncher
from tests.acceptance.row_jobs import TARGETS, Version, cascade, rows_in, rows_of, steered_counts, visits
from tests.jobs.live import Run, running
from tests.jobs.numbers import Numbers, expected_counts, final_counts
from tests.jobs.test_process_job import SPLITS, expected, found
from tests.spark import spark_cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

OFTEN = CoordinatorSettings(interval_ms=300, min_pause_ms=50)
ASKED = CoordinatorSettings(interval_ms=None, min_pause_ms=0, max_concurrent=2)
AGAIN = FixedDelay(attempts=5, delay_ms=50)


@pytest.fixture(scope="module")
def launcher() -> Iterator[SparkLauncher]:
    with spark_cluster("rows") as launcher:
        yield launcher


def exact(run: Run, source: Numbers, output: Path) -> bool:
    """Looked at only when nothing new comes from the source, since looking costs something."""
    operator = run.operator("numbers")
    return bool(operator) and operator["rate_out"] == 0 and final_counts(output) == expected_counts(source)


def pids(run: Run) -> dict[int, int]:
    """Of the processes of the slots, by slot."""
    return {int(row["index"]): int(row["pid"]) for row in run.records.live["slots"]}


def alive_in(run: Run, restarts: int) -> None:
    """Waits until the attempt after so many restarts has come to a checkpoint and the page shows its slots."""
    run.wait_for(lambda: any(m.token == restarts + 1 for m in run.manifests))
    run.wait_for(lambda: run.records.live["restarts"] == restarts and len(run.records.live["slots"]) == 2)


def test_two_overlapping_checkpoints_complete_although_one_input_is_held(
    launcher: SparkLauncher, tmp_path: Path
) -> None:
    """S3-49, S4-24, S4-25, S3-51: coordinator and alignment. One subtask stands still between two barriers.

    Both checkpoints are pending at once; the counts have the barrier of one input and wait for the other's, blocked.
    """
    source = Numbers(total=3_000, batch=50, unbounded=True)
    job = steered_counts(source, tmp_path, 2)
    with running(job, tmp_path / "state", settings=ASKED, launcher=launcher) as run:
        run.wait_for(lambda: run.operator("counts").get("records_in", 0) > 0)
        (tmp_path / "hold").touch()
        run.wait_for((tmp_path / "held").exists)
        run.records.operations += [OperationRequest(name, "checkpoint") for name in ("one", "two")]
        run.master.poke()
        run.wait_for(lambda: len(run.records.reports) == 2)
        run.wait_for(lambda: (run.records.live["checkpoint"] or {}).get("acknowledged", 0) > 0)
        assert not run.manifests, "both are on their way"
        (tmp_path / "hold").unlink()
        run.wait_for(lambda: {"one", "two"} <= run.records.settled.keys())
        run.wait_for(lambda: run.operator("numbers")["records_out"] == source.splits * source.total)
        run.end("drain")
    assert [run.records.settled[name] for name in ("one", "two")] == [({"checkpoint": n}, None) for n in (1, 2)]
    assert [m.checkpoint for m in run.manifests] == [1, 2, 3]
    waited = {row["uid"]: row["max_alignment_ms"] for row in run.records.completed[0].operators}
    assert waited["counts"] > max(waited["numbers"], waited["steered"]) == 0
    assert final_counts(tmp_path / "out") == expected_counts(source)


def test_a_finished_branch_is_skipped_through_an_exception_two_kills_and_a_zombie(
    launcher: SparkLauncher, tmp_path: Path
) -> None:
    """S0-12, S0-15, S0-44, S0-53, S0-86, S4-42, S1-11: finished tasks, recovery and fencing, one after the other."""
    source, table = Numbers(total=12_000, batch=20, unbounded=True), Numbers(total=200)
    job = steered_counts(source, tmp_path, 2, table)
    with running(
        job, tmp_path / "state", settings=OFTEN, restart=AGAIN, launcher=launcher, heartbeat_timeout_ms=3_000
    ) as run:
        run.wait_for(lambda: run.manifests and "table-counts" in run.manifests[-1].finished_operators())
        run.checkpoints(2)
        run.wait_for(lambda: len(run.records.live["slots"]) == 2)
        for restarts, harm in enumerate((_raise, _kill, _freeze, _kill_executor), 1):
            before, executors = pids(run), {row["index"]: row["executor"] for row in run.records.live["slots"]}
            harm(run, tmp_path)
            alive_in(run, restarts)
            replaced = {slot for slot, pid in pids(run).items() if pid != before[slot]}
            shared = {slot for slot in executors if executors[slot] == executors[1]}
            lost = {_raise: set(), _kill: {1}, _freeze: {0}, _kill_executor: shared}[harm]
            assert replaced == lost, "an exception costs no process, and a lost slot only its own"
        run.wait_for(lambda: exact(run, source, tmp_path / "out"))
        run.end("drain")
    assert {path.name for path in tmp_path.glob("opened-*")} == {"opened-1-0", "opened-1-1"}, "skipped ever after"
    reasons = [reason for _, outcome, reason in run.records.attempts if outcome == "failed"]
    causes = ("as asked", "slot 1", "has been silent", "slot")
    assert all(cause in reason for cause, reason in zip(causes, reasons, strict=True))
    finished = {"table", "rows", "table-counts", "table-counts-out"}
    assert all(finished <= set(m.finished_operators()) for m in run.manifests if m.token > 1)
    assert final_counts(tmp_path / "out") == expected_counts(source)
    assert final_counts(tmp_path / "table") == expected_counts(table)


def _raise(run: Run, folder: Path) -> None:
    (folder / "raise").touch()


def _kill(run: Run, folder: Path) -> None:
    os.kill(pids(run)[1], signal.SIGKILL)


def _kill_executor(run: Run, folder: Path) -> None:
    daemon = psutil.Process(pids(run)[1]).parent()
    assert daemon is not None
    executor = daemon.parent()
    assert executor is not None
    assert executor.name() == "java"
    executor.kill()


def _freeze(run: Run, folder: Path) -> None:
    """It wakes up when its attempt has been replaced, unless Spark was quicker."""
    frozen, token = pids(run)[0], run.records.token
    os.kill(frozen, signal.SIGSTOP)
    run.wait_for(lambda: run.records.token > token)
    with contextlib.suppress(ProcessLookupError):
        os.kill(frozen, signal.SIGCONT)


def test_three_commits_in_a_row_end_with_one_checkpoint(launcher: SparkLauncher, tmp_path: Path) -> None:
    """S0-14, S0-27, S0-36, S0-20, S0-22: a bounded job ends by itself; restored, it ends at once with nothing twice."""
    source = Numbers(total=500, batch=20)
    with running(cascade(source, tmp_path, 2), tmp_path / "state", settings=ASKED, launcher=launcher) as run:
        run.join()
    assert run.records.state is RunState.FINISHED
    (manifest,) = run.manifests
    assert {o.finished for o in manifest.operators.values()} == {FinishedState.FINISHED}
    for is_second in (False, True):
        assert [rows_in(tmp_path / name) for name in TARGETS] == [rows_of(source)] * 3
        if not is_second:
            _restore(cascade(source, tmp_path, 2), tmp_path, run, launcher)


def _restore(job: CompiledJob, folder: Path, before: Run, launcher: SparkLauncher) -> None:
    """The last checkpoint of a run that has ended, in a run of its own, which must end by itself."""
    records = MemoryRunStore(token=Token(100), restore_from=before.records.completed[-1].folder)
    with running(job, folder / "state", records, ASKED, launcher=launcher) as run:
        run.join()
    assert records.state is RunState.FINISHED


def test_an_early_branch_ends_before_a_stop_and_the_restored_job_is_drained(
    launcher: SparkLauncher, tmp_path: Path
) -> None:
    """S0-28, S0-29, S0-69, S0-80, S0-84: stop and drain of a job one branch of which has ended by itself."""
    source, early = Numbers(total=2_000, batch=20, unbounded=True), Numbers(total=60)
    records: Any = MemoryRunStore()
    with running(cascade(source, tmp_path, 2, early), tmp_path / "state", records, OFTEN, launcher=launcher) as run:
        run.wait_for(lambda: _ended(run, "early") and _ended(run, "early-out"))
        run.checkpoints()
        savepoint = run.end("stop")
    assert records.state is RunState.STOPPED
    assert records.completed[-1].manifest.kind is CheckpointKind.STOP
    assert set(records.completed[-1].manifest.finished_operators()) == {"early", "early-out"}
    assert rows_in(tmp_path / "early") == rows_of(early)
    records = MemoryRunStore(token=Token(100), restore_from=savepoint)
    with running(cascade(source, tmp_path, 3, early), tmp_path / "state", records, OFTEN, launcher=launcher) as run:
        run.wait_for(lambda: rows_in(tmp_path / TARGETS[-1]) == rows_of(source))
        run.end("drain")
    assert records.state is RunState.FINISHED
    assert [rows_in(tmp_path / name) for name in (*TARGETS, "early")] == [*[rows_of(source)] * 3, rows_of(early)]
    assert not list(tmp_path.rglob(".weir-*")), "everything is committed"


def _ended(run: Run, uid: str) -> bool:
    return {row["state"] for row in run.operator(uid).get("subtasks", ())} == {"ended"}


def test_state_timers_and_finished_marks_follow_their_operators_over_versions(
    launcher: SparkLauncher, tmp_path: Path
) -> None:
    """S0-49, S1-15, S3-19, S3-20, S3-24, S4-52: operators in place, their interface and their state.

    A function with a map, values that expire and event timers, at parallelism 2, 3 and 1; steps renamed and reordered.
    """
    versions = [Version(450, 2), Version(700, 3, turned=True), Version(1_000, 1, last=True)]
    folder = ""
    for number, version in enumerate(versions):
        records = MemoryRunStore(token=Token(100 * number + 1), restore_from=folder or None)
        job = visits(version, tmp_path)
        with running(job, tmp_path / "state", records, OFTEN, launcher=launcher) as run:
            if version.last:
                run.join()
                break
            before = versions[number - 1].upto if number else 0
            rows = SPLITS * (version.upto - before)
            run.wait_for(lambda rows=rows: run.operator("visits").get("records_in", 0) == rows)  # type: ignore[misc]
            folder = run.end("stop")
        assert all(row[1] < version.upto // 60 for row in found(tmp_path / "out")), "the last burst is still open"
        counts = [row["records_in"] for row in run.operator("visits")["subtasks"]]
        assert len(counts) == version.parallelism
        assert all(counts), "every subtask has work"
    assert records.state is RunState.FINISHED
    assert found(tmp_path / "out") == expected(1_000)
    assert rows_in(tmp_path / "ticks") == rows_of(Numbers(total=300))
