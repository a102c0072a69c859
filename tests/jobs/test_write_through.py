"""Two-phase commit within a stream: three sinks in a row, and an end between any two phases of their one checkpoint."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from runtime.connectors.sinks.file_committer import FileCommitter
from runtime.connectors.sinks.parquet import ParquetSink, ParquetWriter
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode, RunState
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.commit import CommitPermit
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.plan import CompiledJob
from runtime.io.memory.run_store import MemoryRunStore
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Bomb, Gated
from tests.jobs.mortal import Deaths, Mortal
from tests.jobs.numbers import Numbers, committed

SINKS = ("first", "second", "third")
SOURCE = Numbers(total=300)
ASKED = CoordinatorSettings(interval_ms=None, min_pause_ms=0)  #: no periodic checkpoint: only that of the end
AGAIN = FixedDelay(attempts=100, delay_ms=30)


class MortalWriter(ParquetWriter):
    def __init__(self, folder: Path, mortal: Mortal) -> None:
        super().__init__(folder)
        self._mortal = mortal

    def prepare(self, checkpoint: int) -> tuple[Any, ...]:
        self._mortal.at("prepare")
        prepared = super().prepare(checkpoint)
        self._mortal.at("prepared")
        return prepared


class MortalCommitter(FileCommitter):
    def __init__(self, folder: Path, mortal: Mortal) -> None:
        super().__init__(folder)
        self._mortal = mortal

    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        self._mortal.at("commit")
        count = super().commit(permit, committables)
        self._mortal.at("committed")
        return count

    def commit_epoch(self, permit: CommitPermit, committables: Sequence[Any]) -> None:
        self._mortal.at("commit epoch")
        super().commit_epoch(permit, committables)
        self._mortal.at("epoch committed")


class MortalSink(ParquetSink):
    def __init__(self, path: str, mortal: Mortal) -> None:
        super().__init__(path)
        self._mortal = mortal

    def writer(self) -> ParquetWriter:
        return MortalWriter(Path(self.path), self._mortal)

    def committer(self) -> FileCommitter:
        return MortalCommitter(Path(self.path), self._mortal)


def cascade(source: Any, folder: Path, deaths: Deaths, trouble: Any = lambda batch: batch) -> CompiledJob:
    """Three sinks in a row; a single subtask of the second one reads from two of the first."""

    def sink(uid: str) -> MortalSink:
        return MortalSink(str(folder / uid), Mortal(deaths, uid))

    flow = Dataflow("cascade")
    rows = flow.source("numbers", source).map_batches("trouble", trouble)
    rows = rows.write_through("first", sink("first")).map_batches("between", lambda batch: batch)
    rows.write_through("second", sink("second"), parallelism=1).sink("third", sink("third"))
    return flow.compile(2)


def is_exact(folder: Path, source: Any) -> bool:
    values = sorted(value for value in range(source.total) for _ in range(source.splits))
    return all(sorted(row["value"] for row in committed(folder / uid)) == values for uid in SINKS)


def nothing_pending(folder: Path) -> bool:
    return not [path for uid in SINKS for path in (folder / uid).glob(".weir-*")]


def test_three_cascaded_sinks_end_with_one_checkpoint_that_restores(tmp_path: Path, jobs: Jobs) -> None:
    """S0-31, S0-36: nothing is visible before its record; a new run commits all three from it, and again."""
    deaths = Deaths("first: commit epoch")
    cascade_job = cascade(SOURCE, tmp_path, deaths)
    with jobs.running(cascade_job, tmp_path / "state", settings=ASKED) as run:
        assert run.join() is MasterExitCode.DONE
    assert run.records.state is RunState.FAILED
    (only,) = run.records.completed
    assert {uid for uid in SINKS if only.manifest.operators[uid].subtasks} == set(SINKS)
    assert not any(committed(tmp_path / uid) for uid in SINKS)
    for token in (11, 21):
        records = MemoryRunStore(token=Token(token), restore_from=only.folder)
        records.reserve_ids_above(only.manifest.checkpoint, 1)
        jobs.run_to_end(cascade_job, tmp_path / "state", records, settings=ASKED)
        assert is_exact(tmp_path, SOURCE)
        assert nothing_pending(tmp_path)


def test_a_bounded_job_with_three_cascaded_sinks_takes_one_checkpoint(tmp_path: Path, jobs: Jobs) -> None:
    """S0-36: not one for each."""
    records = jobs.run_to_end(cascade(SOURCE, tmp_path, Deaths()), tmp_path / "state", settings=ASKED)
    assert len(records.completed) == 1
    assert is_exact(tmp_path, SOURCE)


#: Before the record of the checkpoint each attempt comes to all phases again, so one run takes all these ends.
BEFORE_THE_RECORD = [f"{uid}: {step}" for uid in SINKS for step in ("prepare", "prepared")]
BY_THE_MASTER = [
    f"{uid}: {step}" for uid in SINKS for step in ("commit epoch", "commit", "committed", "epoch committed")
]


def test_an_end_between_any_two_phases_of_the_last_checkpoint(tmp_path: Path, jobs: Jobs) -> None:
    """S0-21, S0-31, S0-36, S1-05, S1-31, S1-51: on Spark by SIGKILL of the slot. The master commits at each restore."""
    deaths = Deaths(*BEFORE_THE_RECORD, *BY_THE_MASTER)
    cascade_job = cascade(SOURCE, tmp_path, deaths)
    records = jobs.run_to_end(cascade_job, tmp_path / "state", settings=ASKED, restart=AGAIN)
    assert deaths.waiting == []
    assert records.token > len(BEFORE_THE_RECORD)
    assert is_exact(tmp_path, SOURCE)
    assert nothing_pending(tmp_path)


@pytest.mark.parametrize("uid", SINKS)
def test_a_slot_ends_while_it_commits_in_mid_stream(uid: str, tmp_path: Path, jobs: Jobs) -> None:
    """Checkpoints of a stream that goes on; the slot of one sink ends before and after its commit."""
    source, bomb = Gated(total=50), Bomb()
    deaths = Deaths()
    with jobs.running(cascade(source, tmp_path, deaths, bomb), tmp_path / "state", restart=AGAIN) as run:
        run.wait_for(lambda: is_exact(tmp_path, source))
        for step in ("commit", "committed"):
            before = run.records.token
            deaths.add(f"{uid}: {step}")
            source.total += 50
            run.wait_for(lambda before=before: run.records.token > before)  # type: ignore[misc]
            run.wait_for(lambda: is_exact(tmp_path, source))
        run.end("drain")
    assert is_exact(tmp_path, source)
    assert nothing_pending(tmp_path)
