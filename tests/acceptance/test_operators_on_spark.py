"""Operators that hold something back, on a real Spark: open requests, batches, rules, timers, lists of subtasks.

One session for all stories; each output is compared with an answer worked out without the job. Keyed functions with
values that expire and event timers have their story in `test_rows_on_spark`.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir
from runtime.core.job.ids import Token
from runtime.core.job.key_groups import key_group_range
from runtime.core.job.lifecycle import RunState
from runtime.core.job.restart_strategy import SLOT_OUT_OF_MEMORY_CODE, FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.core.snapshot.manifest import FinishedState
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.spark import SparkLauncher
from tests.acceptance.operator_jobs import FULL, HeldOpen, Service, lookups, rated, rated_answer, told
from tests.acceptance.row_jobs import rows_in, rows_of
from tests.jobs.live import Run, running
from tests.jobs.numbers import Numbers, counts, expected_counts, final_counts
from tests.jobs.test_changelog import folded
from tests.spark import spark_cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

OFTEN = CoordinatorSettings(interval_ms=300, min_pause_ms=50)


@pytest.fixture(scope="module")
def launcher() -> Iterator[SparkLauncher]:
    with spark_cluster("operators") as launcher:
        yield launcher


def test_open_requests_are_asked_again_after_a_sigkill(launcher: SparkLauncher, tmp_path: Path) -> None:
    """S0-34: each row is answered once in the output, though the service heard twice of those of the killed slot."""
    source, service = Numbers(total=20, batch=20, unbounded=True), Service(tmp_path)
    rows, job = source.splits * source.total, lookups(source, service, tmp_path)
    maximum = job.graph.max_parallelism
    groups = weir.spi.key_groups(pa.record_batch({"split": pa.array(range(source.splits))}), ["split"], maximum)
    again = source.total * sum(int(group) in key_group_range(1, maximum, 2) for group in groups)
    assert 0 < again < rows
    restart = FixedDelay(attempts=3, delay_ms=50)
    with running(job, tmp_path / "state", settings=OFTEN, restart=restart, launcher=launcher) as run:
        run.wait_for(lambda: service.asked() == rows)
        run.checkpoints(2)
        run.wait_for(lambda: len(run.records.live["slots"]) == 2)
        assert {row["executor"] for row in run.records.live["slots"]} <= {"0", "1"}
        assert all(Path(row["log"]).is_file() for row in run.records.live["slots"])
        os.kill(_pid(run, 1), signal.SIGKILL)
        run.wait_for(lambda: run.records.token == 2 and service.asked() == rows + again)
        assert rows_in(tmp_path / "out") == {}
        (tmp_path / "up").touch()
        run.wait_for(lambda: rows_in(tmp_path / "out").total() == rows)
        run.end("drain")
    assert rows_in(tmp_path / "out") == rows_of(source)
    assert service.asked() == rows + again


def _pid(run: Run, slot: int) -> int:
    return next(int(row["pid"]) for row in run.records.live["slots"] if row["index"] == slot)


def test_a_slot_above_its_memory_is_named_and_replaced(launcher: SparkLauncher, tmp_path: Path) -> None:
    """State that grows, then one allocation of 3 GB: neither takes the host down, and the output stays exact."""
    grow, jump, hurry, bound_mb = tmp_path / "grow", tmp_path / "jump", tmp_path / "hurry", 512
    blocks: list[bytes | bytearray] = []

    def trouble(batch: pa.RecordBatch) -> pa.RecordBatch:
        if grow.exists():
            blocks.append(bytearray(b"x") * (4 << 20))
        if jump.exists():
            blocks.append(b"x" * (3 << 30))
        return batch

    source = Numbers(total=50_000, batch=50, unbounded=True, slow_until=str(hurry))
    job = counts(source, tmp_path / "out", trouble).compile(2)
    restart = FixedDelay(attempts=20, delay_ms=50)
    with running(
        job, tmp_path / "state", settings=OFTEN, restart=restart, launcher=launcher, slot_memory_bytes=bound_mb << 20
    ) as run:
        for number, cause in enumerate((grow, jump), start=1):
            run.wait_for(lambda: any(manifest.token == run.records.token for manifest in run.manifests))
            run.wait_for(lambda: len(_slots(run)) == 2 and all(row["memory_bytes"] for row in _slots(run)))
            assert all(row["memory_bytes"] < bound_mb << 20 for row in _slots(run))
            pids, failed = {row["index"]: row["pid"] for row in _slots(run)}, len(run.records.details)
            cause.touch()
            run.wait_for(lambda failed=failed: len(run.records.details) > failed)  # type: ignore[misc]
            cause.unlink()
            detail = run.records.details[failed]
            assert detail["code"] == SLOT_OUT_OF_MEMORY_CODE, detail
            assert detail["tries"] == failed + 1
            assert f"its bound of {bound_mb} MB" in detail["message"]
            assert re.match(r"Slot [01] on host '", detail["message"])
            assert detail["operator"] == ("" if cause is grow else "trouble")
            run.wait_for(lambda number=number: run.records.live.get("restarts", 0) >= number)  # type: ignore[misc]
            run.wait_for(lambda: _replaced(run, pids) >= {detail["slot"]} and len(_slots(run)) == 2)  # noqa: B023
            replaced = _replaced(run, pids)
            assert replaced == {detail["slot"]}, "its sibling stays, with the memory that it has freed"
        hurry.touch()
        run.wait_for(lambda: final_counts(tmp_path / "out") == expected_counts(source))
        run.end("drain")
    assert final_counts(tmp_path / "out") == expected_counts(source)


def _slots(run: Run) -> list[dict[str, Any]]:
    """None while slots are waited for."""
    slots: list[dict[str, Any]] = run.records.live.get("slots", [])
    return slots


def test_what_operators_hold_moves_over_two_rescales(launcher: SparkLauncher, tmp_path: Path) -> None:
    """S0-07, S0-61, S3-19, S3-28, S3-30, S3-31, S3-35, S4-52: 2 subtasks, 3, then 1, with stops in between.

    Rules, rows in batches, rows in a union list and running sums; the committed changelog is folded.
    """
    savepoint, before = "", 0
    for number, parallelism in enumerate((2, 3, 1), start=1):
        last = number == 3
        source = Numbers(total=100 * number, batch=20, keys=50, unbounded=not last)
        records = MemoryRunStore(token=Token(10 * number), restore_from=savepoint or None)
        job = rated(source, parallelism, tmp_path)
        with running(job, tmp_path / "state", records, OFTEN, launcher=launcher) as run:
            if last:
                run.join()
                break
            new = source.splits * source.total - before
            before += new
            run.wait_for(lambda new=new: run.operator("bulk").get("records_in", 0) == new)  # type: ignore[misc]
            run.wait_for(lambda: run.operator("patient").get("records_out", 0) > 0)
            savepoint = run.end("stop")
        operators = run.manifests[-1].operators
        assert before % FULL, "or nothing would wait in batches"
        assert any(snapshot.segments() for snapshot in operators["bulk"].subtasks.values())
        assert any(snapshot.unions["rows"] for snapshot in operators["patient"].subtasks.values())
        assert operators["rates"].finished is FinishedState.FINISHED
        assert folded(tmp_path / "out").keys() <= rated_answer(source).keys()
    assert records.state is RunState.FINISHED
    assert folded(tmp_path / "out") == rated_answer(source)


def test_a_union_list_waits_with_checkpoints_until_its_operator_has_ended_whole(
    launcher: SparkLauncher, tmp_path: Path
) -> None:
    """S0-59, S0-60, S3-29: one source subtask ends, one goes on; checkpoints are given up, then the job ends."""
    source = HeldOpen(total=200, let=tmp_path / "let")
    with running(told(source, tmp_path), tmp_path / "state", settings=OFTEN, launcher=launcher) as run:
        run.wait_for(lambda: _given_up(run) >= 2)
        (tmp_path / "let").touch()
        run.join()
    assert run.records.state is RunState.FINISHED
    assert all(m.operators["told"].finished is not FinishedState.PARTLY for m in run.manifests)
    assert run.manifests[-1].operators["told"].finished is FinishedState.FINISHED
    assert rows_in(tmp_path / "out") == rows_of(source)


def _given_up(run: Run) -> int:
    return sum(r.reason is FailureReason.UNION_STATE_PARTLY_FINISHED for r in run.records.reports)


def _replaced(run: Run, pids: dict[int, int]) -> set[int]:
    """Slots with another process than in `pids`."""
    return {row["index"] for row in _slots(run) if row["pid"] != pids[row["index"]]}
