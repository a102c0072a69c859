"""Random jobs end with exactly the rows of what their sources have read: a share of the cases of `fuzzing`."""

from collections.abc import Callable
from random import SystemRandom

import numpy as np
import pyarrow as pa
import pytest

from runtime.core.job.messages import Barrier, CheckpointKind
from runtime.core.snapshot.manifest import Manifest
from runtime.master.output_commit import CheckpointOutput
from runtime.state.index.factorise import factorise
from runtime.state.index.key_index import RowIds
from runtime.state.primary_key import PrimaryKey
from runtime.task.output import Outputs
from tests.jobs.fuzzing import replay_command, run_case

CASES = 4  #: of a test
ENOUGH = 40  #: cases that find a planted fault; the first 10 found each of them


def check_cases() -> None:
    """Other seeds in each run."""
    first = SystemRandom().randrange(1_000_000)
    for seed in range(first, first + CASES):
        _, difference = run_case(seed)
        assert difference == "", f"repeat: {replay_command(seed)}"


@pytest.mark.parametrize("share", range(3))
def test_a_random_job_is_exact(share: int) -> None:
    """S3-20: over deaths, failed writes, rescales, takeovers and restored savepoints."""
    check_cases()


@pytest.mark.slow
@pytest.mark.parametrize("share", range(16))
def test_more_random_jobs_are_exact(share: int) -> None:
    """S3-20."""
    check_cases()


# ---------------------------------------------------------------- faults of Weir that it finds


def lose_key_groups(patch: pytest.MonkeyPatch) -> None:
    """A merge keeps one row per key columns, and no proof is compared."""

    def newest_rows(key: PrimaryKey, batch: pa.RecordBatch) -> RowIds:
        distinct = factorise(key.keys(batch.columns))
        newest = np.empty(len(distinct), dtype=np.intp)
        newest[distinct.key_numbers] = np.arange(batch.num_rows)
        newest.sort()
        return newest

    patch.setattr(PrimaryKey, "newest_rows", newest_rows)
    for module in ("backend", "files.segment_log", "proofs"):
        patch.setattr(f"runtime.state.{module}.check_proof", lambda *_: None)


def commit_before_the_manifest(patch: pytest.MonkeyPatch) -> None:
    """Output is committed, and named by the commit log, before its checkpoint is recorded."""
    problem = CheckpointOutput.problem

    def commit(output: CheckpointOutput, manifest: Manifest) -> str | None:
        reason = problem(output, manifest)
        if reason is None and manifest.kind is not CheckpointKind.SAVEPOINT:
            output.on_recorded(manifest)
        return reason

    patch.setattr(CheckpointOutput, "problem", commit)


def keep_pre_aggregated_rows(patch: pytest.MonkeyPatch) -> None:
    """A barrier overtakes the rows that wait in the pre-aggregation before a window."""
    broadcast = Outputs.broadcast

    def send(outputs: Outputs, message: object) -> None:
        waiting = [(edge, edge.pre_aggregator) for edge in outputs._edges]
        if isinstance(message, Barrier):
            for edge, _ in waiting:
                edge.pre_aggregator = None
        broadcast(outputs, message)  # type: ignore[arg-type]
        for edge, pre_aggregator in waiting:
            edge.pre_aggregator = pre_aggregator

    patch.setattr(Outputs, "broadcast", send)


@pytest.mark.slow
@pytest.mark.parametrize("plant", [lose_key_groups, commit_before_the_manifest, keep_pre_aggregated_rows])
def test_a_planted_fault_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any("missing" in run_case(seed)[1] for seed in range(ENOUGH))
