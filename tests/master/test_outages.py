"""Storage or a service that is away for a while: the run waits, and no restart is counted."""

import errno
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from runtime.connectors.sinks.file_committer import FileCommitter
from runtime.connectors.sinks.parquet import ParquetSink, ParquetWriter
from runtime.core.attempt.result import master_failure
from runtime.core.job.ids import OperatorId
from runtime.core.job.lifecycle import RunState
from runtime.core.job.restart_strategy import OUTAGE_CODE, ExponentialDelay, FixedDelay, NoRestart, RestartStrategy
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.commit import CommitPermit
from runtime.dataflow.builder import Dataflow
from runtime.errors import DataRejected, EnvironmentFailure, OperatorFailure, TargetAway, is_outage
from runtime.master.output_commit import connector_call
from tests.jobs.gated import Gated
from tests.jobs.live import running
from tests.jobs.numbers import Numbers, committed, counts

FULL = OSError(errno.ENOSPC, "No space left on device")


class FullWriter(ParquetWriter):
    away = threading.Event()

    def write(self, batch: pa.RecordBatch) -> None:
        if self.away.is_set():
            raise EnvironmentFailure(f"{self._owner}: it cannot be written: {FULL}") from FULL
        super().write(batch)


class ReadOnlyCommitter(FileCommitter):
    away = threading.Event()
    commits = 0  #: of output, by the master and by slots

    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        if committables and self.away.is_set():
            raise OSError(errno.EROFS, "Read-only file system", str(self._folder))
        count = super().commit(permit, committables)
        ReadOnlyCommitter.commits += bool(committables)
        return count


class TroubledSink(ParquetSink):
    def writer(self) -> ParquetWriter:
        return FullWriter(Path(self.path))

    def committer(self) -> FileCommitter:
        return ReadOnlyCommitter(Path(self.path))


SOON = ExponentialDelay(initial_ms=20, max_ms=40, reset_after_ms=60_000)


@pytest.fixture(autouse=True)
def present() -> None:
    for event in (FullWriter.away, ReadOnlyCommitter.away):
        event.clear()
    ReadOnlyCommitter.commits = 0


def troubled(source: Any, output: Path) -> Dataflow:
    flow = Dataflow("passing")
    flow.source("numbers", source).sink("out", TroubledSink(str(output)))
    return flow


@pytest.mark.parametrize("away", [FullWriter.away, ReadOnlyCommitter.away], ids=["full", "read-only"])
def test_a_sink_whose_folder_is_away_is_waited_for(tmp_path: Path, away: threading.Event) -> None:
    """Ten restarts would be used up in seconds: here there is not one."""
    source, output = Gated(total=100), tmp_path / "out"
    job = troubled(source, output).compile(2)
    with running(job, tmp_path / "state", restart=FixedDelay(attempts=0), outage_backoff=SOON) as run:
        run.checkpoints()
        away.set()
        source.total = 200
        run.wait_for(lambda: len(run.records.attempts) >= 5)
        assert not run.records.state.is_terminal
        details = [detail for detail in run.records.details if detail["code"] == OUTAGE_CODE]
        assert [detail["tries"] for detail in details] == list(range(1, len(details) + 1))
        assert {detail["operator"] for detail in details} <= {"out", ""}
        assert any(word in details[0]["message"] for word in ("No space left", "Read-only"))
        away.clear()
        run.wait_for(lambda: len(committed(output)) == source.total * source.splits)
        run.end("drain")
    assert sorted(row["value"] for row in committed(output)) == sorted(list(range(source.total)) * source.splits)


def test_the_last_output_of_a_drain_waits_for_its_folder(tmp_path: Path) -> None:
    """The savepoint is recorded: the run ends when its output is committed, not after a minute as failed."""
    source, output = Numbers(total=100, unbounded=True), tmp_path / "out"
    seldom = CoordinatorSettings(interval_ms=3_000, min_pause_ms=0)  # none may come, and fail, before the drain
    job = troubled(source, output).compile(1)
    with running(job, tmp_path / "state", settings=seldom, commit_timeout_ms=0, wait_step_s=0.02) as run:
        run.wait_for(lambda: len(committed(output)) == source.total * source.splits)
        run.wait_for(lambda: ReadOnlyCommitter.commits >= 2)  # the slot's own, after the master's
        source_rows = committed(output)
        ReadOnlyCommitter.away.set()
        run.ask("drain")
        run.wait_for(run.records.final_savepoint)
        ReadOnlyCommitter.away.clear()
        run.join()
    assert run.records.state is RunState.FINISHED
    assert committed(output) == source_rows


@pytest.mark.parametrize("restart", [NoRestart(), FixedDelay(attempts=0)], ids=["none", "fixed"])
def test_a_failure_that_is_no_outage_or_a_job_without_restarts_ends_as_before(
    tmp_path: Path, restart: RestartStrategy
) -> None:
    def trouble(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise FULL if isinstance(restart, FixedDelay) else ConnectionRefusedError(errno.ECONNREFUSED, "refused")

    job = counts(Numbers(total=100), tmp_path / "out", trouble).compile(1)
    with running(job, tmp_path / "state", restart=restart) as run:
        run.join()
    assert run.records.state is RunState.FAILED, "a step between source and sink is the author's"


class HungCommitter(FileCommitter):
    hangs, released = threading.Event(), threading.Event()

    def commit_epoch(self, permit: CommitPermit, committables: Sequence[Any]) -> None:
        if committables and self.hangs.is_set():
            self.hangs.clear()
            assert self.released.wait(60)
        super().commit_epoch(permit, committables)


class HungSink(ParquetSink):
    def committer(self) -> FileCommitter:
        return HungCommitter(Path(self.path))


def test_a_commit_that_hangs_fails_the_attempt_and_is_repeated(tmp_path: Path) -> None:
    """Otherwise no checkpoint, stop or cancel would ever follow. The hung call returns in a later attempt."""
    source, output = Gated(total=100), tmp_path / "out"
    flow = Dataflow("hung")
    flow.source("numbers", source).sink("out", HungSink(str(output)))
    limits: dict[str, Any] = {"restart": FixedDelay(attempts=0), "outage_backoff": SOON, "metadata_timeout_ms": 2_000}
    with running(flow.compile(2), tmp_path / "state", **limits) as run:
        run.checkpoints()
        HungCommitter.hangs.set()
        source.total = 200
        run.wait_for(lambda: run.records.attempts)
        run.wait_for(lambda: len(committed(output)) == source.total * source.splits)
        HungCommitter.released.set()
        run.end("stop")
    reason = run.records.attempts[0][2]
    assert re.search(r"checkpoint \d+ is not stored and committed after 2000 ms", reason), reason
    assert sorted(row["value"] for row in committed(output)) == sorted(list(range(source.total)) * source.splits)


def test_what_is_an_outage() -> None:
    wrapped = EnvironmentFailure("it cannot be written")
    wrapped.__cause__ = FULL
    client = OSError("HTTPConnectionPool: Max retries exceeded")  # as `requests` raises it: no number, a context
    client.__context__ = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
    row_error = ValueError("row 3")
    row_error.__context__ = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
    away = TargetAway("the server does not answer")
    assert all(
        is_outage(error) for error in (FULL, wrapped, client, away, ConnectionResetError(errno.ECONNRESET, "reset"))
    )
    errors = (
        row_error,
        FileNotFoundError(errno.ENOENT, "no such file"),
        PermissionError(errno.EACCES, "no"),
        KeyError("x"),
    )
    assert not any(is_outage(error) for error in (*errors, EnvironmentFailure("channel broke")))


def test_rows_that_a_target_refuses_in_a_commit_are_no_reason_to_restart() -> None:
    """As in a slot: the rows stay the same, and a person must act."""
    failed = master_failure(DataRejected("topic 't': a message is too large"))
    assert (failed.is_final, failed.is_outage) == (True, False)


@pytest.mark.parametrize("error", [OSError(errno.EROFS, "read-only"), DataRejected("too large"), KeyError("part")])
def test_an_error_of_a_committer_names_its_operator(error: Exception) -> None:
    """The page said that the file system is read-only, and not of which sink."""
    kind = OperatorFailure if isinstance(error, KeyError) else type(error)
    with pytest.raises(kind) as caught, connector_call(OperatorId("out"), "its committer's commit"):
        raise error
    assert master_failure(caught.value).operator == "out"
