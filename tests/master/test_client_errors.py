"""Connectors whose client library raises its own errors in the job master: each is recorded, and names the operator."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from runtime.connectors.sinks.file_committer import FileCommitter
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode, RunState
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.commit import CommitPermit
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.dataflow.builder import Dataflow
from tests.jobs.gated import Gated
from tests.jobs.live import running
from tests.jobs.numbers import Numbers, committed

SOON = FixedDelay(attempts=1_000, delay_ms=10)


class ClientError(Exception):
    """As a database driver or a Kafka client raises it."""


class ClientCommitter(FileCommitter):
    failing: ClassVar[set[str]] = set()

    def _call(self, method: str) -> None:
        if method in self.failing:
            raise ClientError("quota exceeded")

    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        self._call("commit")
        return super().commit(permit, committables)

    def commit_epoch(self, permit: CommitPermit, committables: Sequence[Any]) -> None:
        self._call("commit_epoch")
        super().commit_epoch(permit, committables)

    def missing(self, committables: Sequence[Any]) -> list[str]:
        self._call("missing")
        return super().missing(committables)

    def clean(self, job: str, uid: str, token: Token, keep: Sequence[Any]) -> int:
        self._call("clean")
        return super().clean(job, uid, token, keep)


class ClientSink(ParquetSink):
    def committer(self) -> FileCommitter:
        return ClientCommitter(Path(self.path))


@pytest.fixture(autouse=True)
def working() -> Iterator[None]:
    ClientCommitter.failing.clear()
    yield
    ClientCommitter.failing.clear()


def flow(source: Any, output: Path) -> Dataflow:
    dataflow = Dataflow("client errors")
    dataflow.source("numbers", source).sink("out", ClientSink(str(output)))
    return dataflow


@pytest.mark.parametrize("method", ["commit_epoch", "clean"])
def test_a_committer_that_raises_at_a_restore_fails_that_attempt_and_names_the_sink(
    tmp_path: Path, method: str
) -> None:
    """The job master ended without a record: the page named only an exit code."""
    source, output = Gated(total=100), tmp_path / "out"
    with running(flow(source, output).compile(2), tmp_path / "state", restart=SOON) as run:
        run.checkpoints()
        ClientCommitter.failing |= {method, "commit_epoch"}
        source.total = 200
        run.wait_for(lambda: len(run.records.details) >= 4)
        if method == "clean":
            ClientCommitter.failing.discard("commit_epoch")
            count = len(run.records.details) + 2
            run.wait_for(lambda: len(run.records.details) >= count)
        assert {detail["operator"] for detail in run.records.details} == {"out"}
        assert all("ClientError: quota exceeded" in detail["message"] for detail in run.records.details)
        ClientCommitter.failing.clear()
        run.wait_for(lambda: len(committed(output)) == source.total * source.splits)
        run.end("drain")
    assert sorted(row["value"] for row in committed(output)) == sorted(list(range(source.total)) * source.splits)


def test_a_committer_that_raises_at_a_checkpoint_fails_it_and_every_operation_is_answered(tmp_path: Path) -> None:
    """The metadata thread ended with the error, and later answers were never written."""
    source, output = Gated(total=100), tmp_path / "out"
    with running(flow(source, output).compile(2), tmp_path / "state", restart=SOON) as run:
        run.checkpoints()
        ClientCommitter.failing.add("missing")
        source.total = 200
        # From then on each checkpoint has output that is not recorded, also the savepoint.
        run.wait_for(lambda: any(report.reason is FailureReason.FINALIZE_FAILED for report in run.records.reports))
        run.ask("savepoint")
        run.wait_for(lambda: "savepoint" in run.records.settled)
        result, error = run.records.settled["savepoint"]
        assert result is None
        assert error is not None
        assert "operator 'out', job master" in error["message"]
        assert "ClientError: quota exceeded" in error["message"]
        ClientCommitter.failing.clear()
        run.wait_for(lambda: len(committed(output)) == source.total * source.splits)
        run.end("drain")


def test_a_committer_that_raises_after_a_drain_fails_the_run_with_its_error(tmp_path: Path) -> None:
    source, output = Numbers(total=100, unbounded=True), tmp_path / "out"
    job, no_periodic = flow(source, output).compile(1), CoordinatorSettings(interval_ms=None)
    with running(job, tmp_path / "state", settings=no_periodic, commit_timeout_ms=0, wait_step_s=0.02) as run:
        run.wait_for(lambda: run.operator("out").get("records_in", 0) > 0)
        ClientCommitter.failing |= {"commit", "commit_epoch"}
        run.ask("drain")
        assert run.join() is MasterExitCode.DONE
    assert run.records.state is RunState.FAILED
    assert run.records.failure is not None
    assert "the savepoint 1 is complete" in run.records.failure["message"]
    assert "ClientError: quota exceeded" in run.records.failure["message"]


class UnlistedNumbers(Numbers):
    def list_input(self) -> bytes | None:
        raise ClientError("no such bucket")

    def with_input(self, listing: bytes) -> "UnlistedNumbers":
        return self


def test_a_source_that_raises_when_its_input_is_listed_fails_the_attempt_and_is_named(tmp_path: Path) -> None:
    job = flow(UnlistedNumbers(total=10), tmp_path / "out").compile(1)
    with running(job, tmp_path / "state") as run:
        assert run.join() is MasterExitCode.DONE
    assert run.records.state is RunState.FAILED
    assert run.records.failure is not None
    assert run.records.failure["operator"] == "numbers"
    assert "ClientError: no such bucket" in run.records.failure["message"]
