"""Consumers that take committed files away, and jobs that go on into another output folder."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from runtime.core.attempt.events import OperationRequest
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.commit import pending_committables
from runtime.io.filesystem import FileStore
from runtime.io.manifests import read_manifest
from runtime.io.memory.run_store import MemoryRunStore
from tests.jobs.gated import Bomb, Gated
from tests.jobs.live import FAST, running
from tests.jobs.numbers import Numbers, committed, counts, expected_counts, final_counts
from tests.jobs.test_savepoints import HALF, WHOLE, restored

ASKED = CoordinatorSettings(interval_ms=None)


@contextmanager
def consuming(output: Path, consumed: Path) -> Iterator[None]:
    """Moves what `mv output/* consumed/` would, as soon as it is there."""
    consumed.mkdir()
    over = threading.Event()

    def consume() -> None:
        while not over.wait(0.001):
            consume_once()

    def consume_once() -> None:
        for path in [path for path in output.glob("*") if not path.name.startswith(".")]:
            path.rename(consumed / path.name)

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        consume_once()


def half(folder: Path, kind: str, *then: str) -> Path:
    """The folder of a savepoint that owes everything when it is taken: nothing has been committed before.

    After a plain savepoint the checkpoints `then` complete, and the run is cancelled.
    """
    with running(counts(HALF, folder / "blue").compile(2), folder / "state", settings=ASKED) as run:
        run.wait_for(lambda: run.operator("numbers").get("records_out", 0) == HALF.total * HALF.splits)
        run.ask(kind)
        run.wait_for(lambda: kind in run.records.settled)
        if kind == "savepoint":
            for number, other in enumerate(then, 2):
                run.records.operations.append(OperationRequest(f"{other}-{number}", other))
                run.master.poke()
                run.wait_for(lambda number=number: len(run.manifests) == number)  # type: ignore[misc]
            run.end("cancel")
        assert run.join() is MasterExitCode.DONE
    assert pending_committables(run.manifests[0])
    return folder / "state" / run.records.completed[0].folder


def test_a_consumer_that_takes_every_file_at_once_gets_each_row_once_over_restarts(tmp_path: Path) -> None:
    """Each attempt commits again what its checkpoint holds, and the files of that are gone."""
    bomb, source, output = Bomb(), Gated(total=40), tmp_path / "out"
    flow = counts(source, output, bomb)
    with consuming(output, tmp_path / "consumed"):
        with running(flow.compile(2), tmp_path / "state", restart=FixedDelay(attempts=9, delay_ms=0)) as run:
            for token in (2, 3, 4):
                run.checkpoints(2)
                bomb.arm()
                source.total += 20
                run.wait_for(lambda token=token: run.records.token == token)  # type: ignore[misc]
            run.checkpoints(1)
            savepoint = run.end("drain")
        assert run.records.token == 4, "no attempt has failed by itself"
        last = tmp_path / "state" / savepoint
        assert not pending_committables(read_manifest(FileStore(str(tmp_path / "state")), savepoint)), (
            "the record says so too"
        )
        restored(counts(source, output, bomb), last, tmp_path / "state")
    assert final_counts(tmp_path / "consumed") == expected_counts(source.numbers)


@pytest.mark.parametrize("kind", ["stop", "savepoint"])
def test_a_savepoint_goes_on_in_another_folder_with_what_was_not_committed_in_the_first(
    tmp_path: Path, kind: str
) -> None:
    """Blue and green: after a stop all is committed; what a plain savepoint has prepared is pending."""
    savepoint = half(tmp_path, kind)
    before = committed(tmp_path / "blue")
    assert bool(before) is (kind == "stop")
    for name in ("green", "replay"):
        shutil.copytree(savepoint.parent, tmp_path / f"state of {name}")
        moved = tmp_path / f"state of {name}" / savepoint.name
        restored(counts(WHOLE, tmp_path / name), moved, tmp_path / f"state of {name}")
        assert committed(tmp_path / "blue") == before
        shutil.copytree(tmp_path / "blue", tmp_path / f"both of {name}")
        shutil.copytree(tmp_path / name, tmp_path / f"both of {name}", dirs_exist_ok=True)
        assert final_counts(tmp_path / f"both of {name}") == expected_counts(WHOLE)
        assert not list((tmp_path / name).glob(".weir-*"))


@pytest.mark.parametrize("kind", ["stop", "savepoint"])
def test_a_savepoint_whose_output_is_committed_restores_on_a_machine_that_has_none_of_it(
    tmp_path: Path, kind: str
) -> None:
    """The savepoint itself records it: at the end of a stop, and when a later checkpoint has shown it."""
    savepoint = half(tmp_path, kind, "checkpoint", "checkpoint")
    away = savepoint.rename(tmp_path / "backup")
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "blue").rename(tmp_path / "left behind")
    restored(counts(WHOLE, tmp_path / "green"), away, tmp_path / "elsewhere")
    shutil.copytree(tmp_path / "left behind", tmp_path / "green", dirs_exist_ok=True)
    assert final_counts(tmp_path / "green") == expected_counts(WHOLE)


def test_output_that_is_neither_here_nor_there_is_named(tmp_path: Path) -> None:
    savepoint = half(tmp_path, "savepoint")
    (tmp_path / "blue").rename(tmp_path / "left behind")
    records = MemoryRunStore(token=Token(9), restore_from=savepoint.name)
    with running(counts(WHOLE, tmp_path / "green").compile(1), tmp_path / "state", records, FAST) as run:
        run.join()
    message = str((records.failure or {}).get("message"))
    assert "neither pending nor committed" in message
    assert f"{tmp_path}/blue, where it was written" in message
    assert "rows" in message
    (tmp_path / "green").mkdir()
    for path in (tmp_path / "left behind").glob(".weir-*.pending"):
        shutil.copy(path, tmp_path / "green" / path.name)
    restored(counts(WHOLE, tmp_path / "green"), savepoint, tmp_path / "state")
    assert final_counts(tmp_path / "green") == expected_counts(WHOLE)


def test_a_bounded_job_that_has_ended_ends_at_once_although_its_files_are_gone(tmp_path: Path) -> None:
    source = Numbers(total=50)
    with running(counts(source, tmp_path / "out").compile(1), tmp_path / "state") as run:
        assert run.join() is MasterExitCode.DONE
    for path in (tmp_path / "out").glob("part-*"):
        path.unlink()
    restored(
        counts(source, tmp_path / "out"), tmp_path / "state" / run.records.completed[-1].folder, tmp_path / "state"
    )
    assert committed(tmp_path / "out") == []
