"""The job master between attempts: late cancels, files that it must not delete, slots that it cannot start."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runtime.clock import SystemClock
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.attempt.events import OperationRequest
from runtime.core.job.ids import OperatorId, Token
from runtime.core.job.lifecycle import MasterExitCode, RunState
from runtime.core.job.messages import CheckpointKind
from runtime.core.job.restart_strategy import FixedDelay, NoRestart
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.commit import pending_committables
from runtime.core.snapshot.manifest import FORMAT_VERSION
from runtime.core.snapshot.manifest_codec import encode_manifest
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.plan import CompiledJob
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.io.filesystem import FileStore
from runtime.io.manifests import write_manifest
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.local import LocalLauncher, local_master, run_local
from runtime.master import job_master
from runtime.master.config import MasterConfig
from runtime.master.job_master import JobMaster
from runtime.master.metadata_thread import MetadataThread
from runtime.master.output_commit import commit_pending
from tests.jobs.live import running
from tests.jobs.numbers import Numbers, counts, expected_counts, final_counts
from tests.waiting import until

FAST = CoordinatorSettings(interval_ms=100, min_pause_ms=10)


def broken(folder: Path) -> CompiledJob:
    """A job whose first record fails."""

    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("no such luck")

    flow = Dataflow("broken")
    flow.source("numbers", Numbers(total=10)).map_batches("fails", fail).sink("out", ParquetSink(str(folder / "out")))
    return flow.compile(1)


def test_a_cancel_is_heard_between_attempts(tmp_path: Path) -> None:
    records = MemoryRunStore()
    patient = FixedDelay(attempts=100, delay_ms=3_600_000)
    master = local_master(broken(tmp_path), str(tmp_path / "state"), records, FAST, patient)
    thread = threading.Thread(target=master.run)
    thread.start()
    until(lambda: records.state is RunState.RESTARTING)
    records.operations.append(OperationRequest("c", "cancel"))
    thread.join(60)
    assert not thread.is_alive(), "the cancel waited for the restart delay of an hour"
    assert records.state is RunState.CANCELED
    assert records.settled["c"] == ({}, None)


def test_a_master_that_is_superseded_between_attempts_goes_at_once_and_touches_nothing(tmp_path: Path) -> None:
    """S1-11: neither for the rest of the delay nor once more into the files of the job."""
    records, exits = MemoryRunStore(), list[MasterExitCode]()
    patient = FixedDelay(attempts=100, delay_ms=3_600_000)
    master = local_master(broken(tmp_path), str(tmp_path / "state"), records, FAST, patient)
    thread = threading.Thread(target=lambda: exits.append(master.run()))
    thread.start()
    until(lambda: records.state is RunState.RESTARTING)
    records.superseded = True
    thread.join(60)
    has_ended = not thread.is_alive()
    master.release()
    thread.join(60)
    assert has_ended
    assert exits == [MasterExitCode.SUPERSEDED]


def test_nothing_is_deleted_while_a_retained_manifest_is_unreadable(tmp_path: Path) -> None:
    """What it needs is not known; repairing it must still help."""
    storage = str(tmp_path / "state")
    first = run_local(counts(Numbers(total=100), tmp_path / "out"), storage=storage, settings=FAST)
    folder = first.completed[-1].folder
    manifest = tmp_path / "state" / folder / "manifest.json"
    content = manifest.read_bytes()
    manifest.write_bytes(content[:-20])
    paths = {p for p in (tmp_path / "state").rglob("*") if p.is_file()}
    second = MemoryRunStore(token=Token(9), completed=list(first.completed))
    second.restore_point = lambda passed_over=(): None  # type: ignore[method-assign]
    run_local(counts(Numbers(total=100), tmp_path / "out2"), storage=storage, settings=FAST, records=second)
    assert all(path.exists() for path in paths)


def test_an_unreadable_savepoint_keeps_its_own_files_and_stops_no_other_deletion(tmp_path: Path) -> None:
    """One damaged manifest stopped all deletion: 6 retained, 55 folders. The live report names it."""
    storage = tmp_path / "state"
    job = counts(Numbers(total=100, unbounded=True), tmp_path / "out").compile(1)
    with running(job, storage, retained=3) as run:
        run.checkpoints()
        run.ask("savepoint")
        run.wait_for(lambda: "savepoint" in run.records.settled)
        (folder,) = [path for path in storage.iterdir() if path.name.startswith("savepoint-")]
        (folder / "manifest.json").write_bytes(b"damaged")
        paths = {path for path in folder.rglob("*") if path.is_file()}
        run.checkpoints(count=12)
        run.wait_for(lambda: run.records.live.get("unreadable") == [folder.name])
        older = int(folder.name.split("-")[1]) - 1  # checkpoints whose files the savepoint may need
        run.wait_for(lambda: len([path for path in storage.iterdir() if path.name.startswith("chk-")]) <= older + 3)
        run.end("stop")
    assert all(path.exists() for path in paths)


def test_a_retained_checkpoint_of_newer_software_is_left_alone_and_bars_nothing(tmp_path: Path) -> None:
    """Whoever went back to an older version restores what that can read; the rest stays, whole."""
    storage = tmp_path / "state"
    first = run_local(counts(Numbers(total=100), tmp_path / "out"), storage=str(storage), settings=FAST)
    newer = msgspec.structs.replace(first.completed[-1].manifest, format=FORMAT_VERSION + 1)
    (storage / first.completed[-1].folder / "manifest.json").write_bytes(encode_manifest(newer))
    paths = {path for path in storage.rglob("*") if path.is_file()}
    second = MemoryRunStore(token=Token(9), completed=list(first.completed))
    second.restore_point = lambda passed_over=(): None  # type: ignore[method-assign]
    successor = run_local(
        counts(Numbers(total=100), tmp_path / "out2"), storage=str(storage), settings=FAST, records=second
    )
    assert successor.state is RunState.FINISHED
    assert all(path.exists() for path in paths)


def drained_but_not_committed(folder: Path) -> tuple[MemoryRunStore, list[Path]]:
    """A run whose drain is recorded and whose files of that savepoint are pending still, as if all slots died there."""
    first = MemoryRunStore()
    job = counts(Numbers(total=100, unbounded=True), folder / "out").compile(1)
    master = local_master(job, str(folder / "state"), first, CoordinatorSettings(interval_ms=None))
    thread = threading.Thread(target=master.run)
    thread.start()
    until(lambda: first.live and first.live["operators"]["out"]["records_in"] > 0)
    first.operations.append(OperationRequest("d", "drain"))
    master.poke()
    thread.join(60)
    savepoint = first.completed[-1].manifest
    assert savepoint.kind is CheckpointKind.DRAIN
    write_manifest(FileStore(str(folder / "state")), savepoint)  # the end of the run has noted what was committed
    for mark in (folder / "out").glob(".committed-*"):
        mark.unlink()
    paths = []
    for committable in pending_committables(savepoint)[OperatorId("out")]:
        paths.append(folder / "out" / committable["final"])
        paths[-1].rename(folder / "out" / committable["pending"])
    assert paths, "a test of nothing"
    return MemoryRunStore(token=Token(5), completed=list(first.completed)), paths


def test_a_recorded_savepoint_of_a_drain_ends_the_run_and_is_committed_from_its_manifest(tmp_path: Path) -> None:
    """S0-21: the next master restarts nothing, commits what the slots still owed, and tells whoever asked."""
    records, paths = drained_but_not_committed(tmp_path)
    records.operations.append(OperationRequest("d", "drain"))
    job = counts(Numbers(total=100, unbounded=True), tmp_path / "out").compile(1)
    assert local_master(job, str(tmp_path / "state"), records, FAST).run() is MasterExitCode.DONE
    assert records.state is RunState.FINISHED
    assert all(path.exists() for path in paths)
    assert records.settled["d"] == ({"checkpoint": records.completed[-1].manifest.checkpoint}, None)


def test_an_ended_run_whose_output_cannot_be_committed_fails_and_names_the_savepoint(tmp_path: Path) -> None:
    records, _ = drained_but_not_committed(tmp_path)
    for path in (tmp_path / "out").glob(".*.pending"):
        path.unlink()
    job = counts(Numbers(total=100, unbounded=True), tmp_path / "out").compile(1)
    with running(job, tmp_path / "state", records, commit_timeout_ms=0) as run:
        assert run.join() is MasterExitCode.DONE
    assert records.state is RunState.FAILED
    assert records.failure is not None
    number = records.completed[-1].manifest.checkpoint
    assert f"the savepoint {number} is complete" in str(records.failure["message"])


def test_a_commit_that_takes_long_after_the_last_attempt_does_not_silence_the_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its live reports go on, and name the wait: the process was called gone."""
    answers = threading.Event()

    def slow(*arguments: Any) -> None:
        answers.wait(60)
        commit_pending(*arguments)

    monkeypatch.setattr(job_master, "commit_pending", slow)
    records, paths = drained_but_not_committed(tmp_path)
    job = counts(Numbers(total=100, unbounded=True), tmp_path / "out").compile(1)
    with running(job, tmp_path / "state", records) as run:
        try:
            run.wait_for(lambda: records.live.get("ending", {}).get("waited_ms", 0) >= 2_000)
        finally:
            answers.set()
        assert run.join() is MasterExitCode.DONE
    assert records.live["ending"]["phase"] == "commit"
    assert all(path.exists() for path in paths)


def test_a_master_that_is_released_leaves_what_it_could_not_commit_to_the_next_one(tmp_path: Path) -> None:
    """S0-21: the end of a worker is no reason to fail a run whose savepoint is complete."""
    records, paths = drained_but_not_committed(tmp_path)
    lost = list((tmp_path / "out").glob(".*.pending"))
    backups = [path.rename(tmp_path / path.name) for path in lost]
    job = counts(Numbers(total=100, unbounded=True), tmp_path / "out").compile(1)
    master = local_master(job, str(tmp_path / "state"), records, FAST)
    master.release()
    assert master.run() is MasterExitCode.RELEASED
    assert not records.state.is_terminal
    for path, place in zip(backups, lost, strict=True):
        path.rename(place)
    assert local_master(job, str(tmp_path / "state"), records, FAST).run() is MasterExitCode.DONE
    assert records.state is RunState.FINISHED
    assert all(path.exists() for path in paths)


def test_a_release_during_the_last_try_of_a_commit_leaves_the_run_to_the_next_master(tmp_path: Path) -> None:
    """S0-21: also when the time for the commit has passed, as with a folder that hangs."""
    records, paths = drained_but_not_committed(tmp_path)
    lost = list((tmp_path / "out").glob(".*.pending"))
    backups = [path.rename(tmp_path / path.name) for path in lost]
    job, storage = counts(Numbers(total=100, unbounded=True), tmp_path / "out").compile(1), str(tmp_path / "state")
    config = MasterConfig(job_id=job.name, token=records.token, job=job, storage=storage, commit_timeout_ms=0)
    master = JobMaster(config, records, FileStore(storage), LocalLauncher(), SystemClock())
    master.release()
    assert master.run() is MasterExitCode.RELEASED
    assert not records.state.is_terminal
    for path, place in zip(backups, lost, strict=True):
        path.rename(place)
    assert local_master(job, storage, records, FAST).run() is MasterExitCode.DONE
    assert all(path.exists() for path in paths)


class ClockThat(SystemClock):
    """Does something when it is first looked at, which is while an attempt is made."""

    def __init__(self) -> None:
        self.act: Callable[[], None] | None = None

    def now_ms(self) -> int:
        act, self.act = self.act, None
        if act is not None:
            act()
        return super().now_ms()


def test_each_attempt_records_the_times_of_its_launch_in_order(tmp_path: Path) -> None:
    records, begun = MemoryRunStore(), SystemClock().now_ms()
    restart = FixedDelay(attempts=1, delay_ms=0)
    local_master(broken(tmp_path), str(tmp_path / "state"), records, FAST, restart).run()
    assert len(records.launches) == 2
    for times in records.launches:
        in_order = [begun, times.listed, times.opened, times.connected, times.deployed, SystemClock().now_ms() + 1]
        assert in_order == sorted(in_order)


def test_a_release_while_an_attempt_is_made_is_not_forgotten(tmp_path: Path) -> None:
    records, storage, clock = MemoryRunStore(), str(tmp_path / "state"), ClockThat()
    job = counts(Numbers(total=100, unbounded=True), tmp_path / "out").compile(1)
    config = MasterConfig(job_id="1", token=records.token, job=job, storage=storage, coordinator=FAST)
    master = JobMaster(config, records, FileStore(storage), LocalLauncher(), clock)
    clock.act = master.release
    exits: list[MasterExitCode] = []
    thread = threading.Thread(target=lambda: exits.append(master.run()))
    thread.start()
    thread.join(60)  # the metadata thread alone has 10 s
    has_ended = not thread.is_alive()
    master.release()
    thread.join(30)
    assert has_ended
    assert exits == [MasterExitCode.RELEASED]


class SpentLauncher(LocalLauncher):
    @property
    def loss(self) -> str:
        return "its Spark context has stopped"


def test_a_master_that_can_start_no_slots_any_more_leaves_to_a_fresh_one(tmp_path: Path) -> None:
    records, storage = MemoryRunStore(), str(tmp_path / "state")
    config = MasterConfig(job_id="1", token=records.token, job=broken(tmp_path), storage=storage, coordinator=FAST)
    master = JobMaster(config, records, FileStore(storage), SpentLauncher(), SystemClock())
    assert master.run() is MasterExitCode.BROKEN
    assert not records.state.is_terminal
    assert records.attempts == [(1, "failed", "its Spark context has stopped")]


def test_the_scribe_waits_out_an_outage_and_still_takes_a_last_word() -> None:
    calls: list[str] = []
    outages = iter([EnvironmentFailure("away"), EnvironmentFailure("away")])

    def work() -> None:
        for outage in outages:
            raise outage
        calls.append("written")

    def unexpected(error: BaseException) -> None:
        pytest.fail(str(error))

    scribe = MetadataThread(unexpected)
    scribe.submit(work)
    scribe.close(10)
    assert calls == ["written"]
    last: Callable[[], None] = lambda: calls.append("last word")  # noqa: E731
    scribe.submit(last)
    assert calls == ["written", "last word"]


class AskedMeanwhile(MemoryRunStore):
    """Somebody asks just after the waiting requests have been read, and says so before the master has the answer."""

    poke: Callable[[], None] | None = None

    def take_operations(self, *, only_cancel: bool) -> list[OperationRequest] | None:
        operations = super().take_operations(only_cancel=only_cancel)
        if self.poke is not None and not only_cancel:
            poke, self.poke = self.poke, None
            self.operations.append(OperationRequest("c", "cancel"))
            poke()
        return operations


def test_what_is_asked_while_an_answer_is_on_its_way_is_not_forgotten(tmp_path: Path) -> None:
    records = AskedMeanwhile()
    master = local_master(
        counts(Numbers(total=100, unbounded=True), tmp_path / "out").compile(1), str(tmp_path / "s"), records, FAST
    )
    records.poke = master.poke
    thread = threading.Thread(target=master.run)
    thread.start()
    thread.join(30)
    has_ended = not thread.is_alive()
    master.release()
    thread.join(30)
    assert has_ended
    assert records.settled["c"] == ({}, None)


# ---------------------------------------------------------------- one run after another on the local host


def test_a_second_local_run_into_the_same_folders_is_a_run_of_its_own(tmp_path: Path) -> None:
    """A newcomer runs the same script twice; once the second run failed because a file of this name was in the way."""
    output, source = tmp_path / "out", Numbers(total=100)
    for storage in ("state", "state", "elsewhere"):
        before = set(output.glob("part-*"))
        run_local(counts(source, output), storage=str(tmp_path / storage), settings=FAST, restart=NoRestart())
        rows = [row for file in set(output.glob("part-*")) - before for row in pq.read_table(file).to_pylist()]
        last = {row["key"]: (row["n"], row["total"]) for row in sorted(rows, key=lambda row: row["n"])}
        assert last == expected_counts(source)


def test_a_local_run_restores_a_savepoint_whose_token_is_higher(tmp_path: Path) -> None:
    """It died with an assertion: a permit of an older token."""
    source = Numbers(total=100, unbounded=True)
    job = counts(source, tmp_path / "out").compile(1)
    with running(job, tmp_path / "state", MemoryRunStore(token=Token(7))) as run:
        run.checkpoints()
        folder = run.end("stop")
    records = MemoryRunStore(restore_from=folder)
    storage = str(tmp_path / "state")
    run_local(
        counts(Numbers(total=200), tmp_path / "out"),
        storage=storage,
        records=records,
        settings=FAST,
        restart=NoRestart(),
    )
    assert records.token == 8
    assert final_counts(tmp_path / "out") == expected_counts(Numbers(total=200))


@dataclass(frozen=True)
class Dropped(Numbers):
    """The input of the source has been dropped."""

    def list_input(self) -> bytes | None:
        raise JobRejected("missing-table", "table", "there is no table t")

    def with_input(self, listing: bytes) -> "Dropped":
        return self


def test_a_restored_source_needs_no_listing_of_an_input_that_is_gone(tmp_path: Path) -> None:
    """The backfill has ended, its table is dropped, and another worker takes over the run."""

    def flow(backfill: Numbers, stream: Numbers) -> Dataflow:
        dataflow = Dataflow("backfill")
        union = dataflow.source("backfill", backfill).union("both", dataflow.source("stream", stream))
        union.sink("out", ParquetSink(str(tmp_path / "out")))
        return dataflow

    job = flow(Numbers(total=100), Numbers(total=100, unbounded=True)).compile(1)
    with running(job, tmp_path / "state") as run:
        run.wait_for(lambda: run.manifests and "backfill" in run.manifests[-1].finished_operators())
        folder = run.end("stop")
    records = MemoryRunStore(token=Token(2), restore_from=folder)
    new_job = flow(Dropped(total=100), Numbers(total=200)).compile(1)
    with running(new_job, tmp_path / "state", records) as run:
        run.join()
    assert records.failure is None, records.failure
    assert records.state is RunState.FINISHED
    first = MemoryRunStore(token=Token(9))
    with running(new_job, tmp_path / "new", first) as run:
        run.join()
    assert first.failure is not None
    assert first.failure["code"] == "missing-table"
