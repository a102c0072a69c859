"""Folders that must be the same ones on every host: proven before a start, and looked at before each record."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runtime.connectors.formats.lines import LineFormat
from runtime.connectors.sinks.parquet import ParquetSink, ParquetWriter
from runtime.connectors.sources.directory import DirectorySource
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode, RunState
from runtime.core.job.restart_strategy import FixedDelay
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.plan import CompiledJob
from runtime.errors import JobRejected
from runtime.io.control.messages import Marker
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.local import LocalLauncher
from runtime.master.shared_folders import folders_of, remove_markers, write_markers
from runtime.ports import Exchange, ExchangeListener
from runtime.slot.folder_check import check_folders, find_unshared_folder
from tests.jobs.live import running
from tests.jobs.numbers import Numbers, committed, counts, expected_counts, final_counts
from tests.s3 import S3Server

SOON_S = 0.05


def copying(folder: Path) -> CompiledJob:
    """A job that reads and writes folders, dead letters among them."""
    letters = str(folder / "letters")
    source = DirectorySource(str(folder / "in"), LineFormat(), on_malformed="dead_letter", dead_letter_path=letters)
    flow = Dataflow("copying")
    flow.source("lines", source).sink("out", ParquetSink(str(folder / "out")))
    return flow.compile(1)


def test_every_folder_of_a_job_is_marked(tmp_path: Path) -> None:
    """S1: also one that is written and not there yet; one that is read may come later."""
    job, storage = copying(tmp_path), str(tmp_path / "state")
    inputs, outputs = folders_of(job, storage)
    assert inputs == {str(tmp_path / "in")}
    assert outputs == {str(tmp_path / name) for name in ("out", "letters", "state")}
    assert {marker.folder for marker in write_markers(job, "1", Token(1), storage)} == outputs
    (tmp_path / "in").mkdir()
    markers = write_markers(job, "1", Token(2), storage)
    assert {marker.folder for marker in markers} == outputs | inputs
    assert find_unshared_folder(markers, SOON_S) is None
    assert all(len(list(Path(folder).iterdir())) == 1 for folder in outputs | inputs), "the first attempt's are gone"
    (tmp_path / "out").rename(tmp_path / "mounted")
    (tmp_path / "out").mkdir()
    assert find_unshared_folder(markers, SOON_S) == str(tmp_path / "out")
    remove_markers(markers, "1", Token(2))
    assert list((tmp_path / "in").iterdir()) == []


def test_a_folder_that_cannot_be_marked_is_compared_by_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source is often mounted for reading only."""
    job, storage = copying(tmp_path), str(tmp_path / "state")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a\n")

    def read_only(path: Path, *arguments: Any, **options: Any) -> None:
        if path.parent == tmp_path / "in":
            raise OSError(30, "Read-only file system")
        path.write_bytes(b"")

    monkeypatch.setattr(Path, "touch", read_only)
    markers = write_markers(job, "1", Token(1), storage)
    assert find_unshared_folder(markers, SOON_S) is None
    shutil.move(tmp_path / "in" / "a.txt", tmp_path / "b.txt")
    assert find_unshared_folder(markers, SOON_S) == str(tmp_path / "in")


def test_a_bucket_is_marked_by_an_object(bucket_uri: str, s3_server: S3Server, tmp_path: Path) -> None:
    job = copying(tmp_path)
    write_markers(job, "1", Token(1), bucket_uri)
    markers = [each for each in write_markers(job, "1", Token(2), bucket_uri) if each.folder == bucket_uri]
    assert s3_server.keys(bucket_uri.split("/", 3)[3]) == [f"{bucket_uri.split('/', 3)[3]}/markers/2"]
    assert find_unshared_folder(markers, SOON_S) is None
    elsewhere = [Marker(marker.folder.replace(bucket_uri, f"{bucket_uri}-2"), marker.files) for marker in markers]
    assert find_unshared_folder(elsewhere, SOON_S) == f"{bucket_uri}-2"
    remove_markers(markers, "1", Token(2))
    assert find_unshared_folder(markers, SOON_S) == bucket_uri


@pytest.mark.parametrize("is_bucket", [True, False])
def test_a_superseded_master_leaves_the_markers_of_its_successor(
    request: pytest.FixtureRequest, is_bucket: bool, tmp_path: Path
) -> None:
    """It may still run. A slot that finds no marker refuses the start of the job for good."""
    job = copying(tmp_path)
    storage = request.getfixturevalue("bucket_uri") if is_bucket else str(tmp_path / "state")
    markers = write_markers(job, "1", Token(10), storage)
    write_markers(job, "1", Token(9), storage)
    assert find_unshared_folder(markers, SOON_S) is None


CHECK = """
import sys
from runtime.io.control.messages import Marker
from runtime.slot.folder_check import check_folders
check_folders([Marker(sys.argv[1], ["markers/1"])], 3, is_first_start=True)
"""


def test_a_host_whose_credentials_are_refused_is_named(bucket_uri: str, tmp_path: Path) -> None:
    write_markers(copying(tmp_path), "1", Token(1), bucket_uri)
    for secret, problem in ((os.environ["AWS_SECRET_ACCESS_KEY"], ""), ("of-another", "SignatureDoesNotMatch")):
        environment = {**os.environ, "AWS_SECRET_ACCESS_KEY": secret}
        command = [sys.executable, "-c", CHECK, bucket_uri]
        host = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (host.returncode == 0) is (problem == "")
        assert problem in host.stderr
        assert ("JobRejected: storage: host" in host.stderr and "(slot 3)" in host.stderr) is (problem != "")


def test_a_bucket_of_another_server_names_the_endpoint(bucket_uri: str) -> None:
    with pytest.raises(JobRejected, match=r"does not see the object .*does AWS_ENDPOINT_URL name the same server\?"):
        check_folders([Marker(bucket_uri, ["markers/1"])], 3, is_first_start=True)


class Hosts(LocalLauncher):
    """Slots that might run on several hosts. One of them sees another output folder as long as `elsewhere` is there."""

    spans_hosts = True

    def __init__(self, out: Path, elsewhere: Path) -> None:
        super().__init__()
        self._out, self._elsewhere = out, elsewhere

    def open_exchange(self, slot: int, token: Token, secret: str, listener: ExchangeListener) -> Exchange:
        if slot == 1 and self._elsewhere.exists():
            for marker in self._out.glob(".weir-*-marker-*"):
                marker.unlink()
        return super().open_exchange(slot, token, secret, listener)


def test_a_first_start_is_refused_with_host_and_folder(tmp_path: Path) -> None:
    """Nothing has been written by then, and nothing is tried again."""
    records, elsewhere = MemoryRunStore(), tmp_path / "elsewhere"
    elsewhere.touch()
    job = counts(Numbers(total=100), tmp_path / "out").compile(2)
    hosts = Hosts(tmp_path / "out", elsewhere)
    with running(job, tmp_path / "state", records, launcher=hosts, restart=FixedDelay(attempts=9, delay_ms=10)) as run:
        assert run.join() is MasterExitCode.DONE
    assert records.state is RunState.FAILED
    assert records.failure is not None
    assert str(tmp_path / "out") in records.failure["message"]
    assert "is a mount missing on this host?" in records.failure["message"]
    assert len(records.attempts) == 1
    assert list((tmp_path / "out").iterdir()) == []


def test_a_mount_that_comes_back_ends_the_restarts(tmp_path: Path) -> None:
    """A run that has run already is not given up for it: hosts start before their mounts are there."""
    records, elsewhere = MemoryRunStore(), tmp_path / "elsewhere"
    elsewhere.touch()
    source = Numbers(total=100)
    job, hosts = counts(source, tmp_path / "out").compile(2), Hosts(tmp_path / "out", elsewhere)
    restart = FixedDelay(attempts=1_000, delay_ms=10)
    with running(job, tmp_path / "state", records, launcher=hosts, restart=restart, has_had_slots=True) as run:
        run.wait_for(lambda: records.attempts)
        assert "is a mount missing" in records.attempts[0][2]
        elsewhere.unlink()
        assert run.join() is MasterExitCode.DONE
    assert records.state is RunState.FINISHED
    assert final_counts(tmp_path / "out") == expected_counts(source)
    assert not list((tmp_path / "out").glob("*-marker-*")), "markers are removed"


@dataclass(frozen=True)
class Misplacing(ParquetSink):
    """What is prepared lies where only the slot sees it as long as `elsewhere` is there."""

    elsewhere: str = ""

    def writer(self) -> ParquetWriter:
        return MisplacingWriter(Path(self.path), Path(self.elsewhere))


class MisplacingWriter(ParquetWriter):
    def __init__(self, folder: Path, elsewhere: Path) -> None:
        super().__init__(folder)
        self._folder, self._elsewhere = folder, elsewhere

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        prepared = super().prepare(checkpoint)
        if self._elsewhere.is_dir():
            for committable in prepared:
                (self._folder / committable["pending"]).rename(self._elsewhere / committable["pending"])
        return prepared


def test_output_that_the_master_cannot_see_fails_its_checkpoint(tmp_path: Path) -> None:
    """Nothing is recorded that could not be committed; when the files are there again, they go with the next one."""
    elsewhere, out, records = tmp_path / "elsewhere", tmp_path / "out", MemoryRunStore()
    elsewhere.mkdir()
    flow = Dataflow("numbers")
    source = Numbers(total=1_000, unbounded=True)
    flow.source("numbers", source).sink("out", Misplacing(str(out), elsewhere=str(elsewhere)))
    with running(flow.compile(2), tmp_path / "state", records) as run:
        run.wait_for(lambda: any("cannot be seen from the job master" in report.detail for report in records.reports))
        assert committed(out) == []
        assert not any(map(_has_output, run.manifests))
        lost = sorted(elsewhere.iterdir())
        elsewhere.rename(tmp_path / "gone")
        for path in sorted((tmp_path / "gone").iterdir()):
            path.rename(out / path.name)
        run.wait_for(lambda: len(committed(out)) == 4 * source.total)
        run.end("drain")
    assert lost, "something was misplaced"
    assert len(committed(out)) == 4 * source.total


def _has_output(manifest: Any) -> bool:
    return any(subtask.committables for subtask in manifest.operators["out"].subtasks.values())
