"""Savepoints of real jobs: into changed graphs, moved elsewhere, damaged."""

import itertools
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import MasterExitCode, RunState
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.manifest import Manifest
from runtime.core.snapshot.manifest_codec import SigningKeys, decode_manifest, encode_manifest, manifest_folder
from runtime.dataflow.builder import Dataflow
from runtime.errors import WeirError
from runtime.io.manifests import set_signing_keys
from runtime.io.memory.run_store import MemoryRunStore
from runtime.operators.aggregates import Count, Sum
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Bomb, Gated
from tests.jobs.live import FAST, running
from tests.jobs.numbers import Numbers, committed, counts, expected_counts, final_counts

THREADS = Jobs(None)
HALF = Numbers(total=300, unbounded=True)
WHOLE = Numbers(total=500)


def taken(flow: Dataflow, storage: Path, kind: str = "stop", jobs: Jobs = THREADS) -> Path:
    """The folder of a savepoint of `flow`, taken after the first half was written; the job has ended."""
    periodic = FAST if kind != "savepoint" else CoordinatorSettings(interval_ms=None)  # which would commit
    with jobs.running(flow.compile(2), storage, settings=periodic) as run:
        run.wait_for(lambda: run.operator("numbers").get("records_out", 0) >= HALF.total * HALF.splits)
        run.ask(kind)
        run.wait_for(lambda: kind in run.records.settled)
        run.end("cancel" if kind == "savepoint" else kind)
    result, _ = run.records.settled[kind]
    assert result is not None
    return next(storage / c.folder for c in run.records.completed if c.manifest.checkpoint == result["checkpoint"])


def ended(flow: Dataflow, storage: Path, jobs: Jobs = THREADS) -> Path:
    """The folder of the last checkpoint of a bounded job that has ended by itself."""
    with jobs.running(flow.compile(1), storage) as run:
        assert run.join() is MasterExitCode.DONE
    return storage / run.records.completed[-1].folder


def restored(
    flow: Dataflow, place: Path | str, storage: Path, *, allow_unmapped: bool = False, jobs: Jobs = THREADS
) -> MemoryRunStore:
    """The job, run to its end from the savepoint in `place`, at another parallelism."""
    name = place.name if isinstance(place, Path) and place.parent == storage else str(place)
    records = MemoryRunStore(token=Token(9), restore_from=name)
    with jobs.running(flow.compile(3), storage, records, allow_unmapped=allow_unmapped) as run:
        exit_code = run.join()
    if exit_code is not MasterExitCode.DONE or records.failure is not None:
        raise WeirError(str((records.failure or {}).get("message")))
    return records


# ---------------------------------------------------------------- into changed graphs


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def test_state_is_found_again_when_steps_are_renamed_reordered_and_added(tmp_path: Path, jobs: Jobs) -> None:
    """S0-48, S0-49: names, order and neighbours are not part of an operator's identity."""
    first = Dataflow("counts")
    numbers = first.source("numbers", HALF).map_batches("one", same).map_batches("two", same)
    aggregates = numbers.key_by("key").aggregate("counts", {"n": Count(), "total": Sum("value")})
    aggregates.sink("out", ParquetSink(str(tmp_path / "out")))
    savepoint = taken(first, tmp_path / "state", jobs=jobs)

    then = Dataflow("counts")
    renamed = then.source("numbers", WHOLE, name="Numbers, now with an end")
    swapped = renamed.map_batches("two", same, parallelism=1).map_batches("new", same).map_batches("one", same)
    counted = swapped.key_by("key").aggregate("counts", {"n": Count(), "total": Sum("value")}, parallelism=2)
    counted.map_batches("last", same).sink("out", ParquetSink(str(tmp_path / "out")), name="Files")
    restored(then, savepoint, tmp_path / "state", jobs=jobs)
    assert final_counts(tmp_path / "out") == expected_counts(WHOLE)


def with_second_branch(source: Numbers, folder: Path) -> Dataflow:
    """The counts, and a second aggregate with a sink of its own."""
    flow = counts(source, folder / "out")
    sums = flow.source("more", source).key_by("key").aggregate("sums", {"total": Sum("value")})
    sums.sink("out2", ParquetSink(str(folder / "out2")))
    return flow


def test_state_that_the_job_has_no_operator_for_goes_only_if_that_is_allowed(tmp_path: Path) -> None:
    savepoint = taken(with_second_branch(HALF, tmp_path), tmp_path / "state")
    flow = counts(WHOLE, tmp_path / "out")
    with pytest.raises(WeirError, match="more: the checkpoint holds state for an operator that the job lacks"):
        restored(flow, savepoint, tmp_path / "state")
    restored(flow, savepoint, tmp_path / "state", allow_unmapped=True)
    assert final_counts(tmp_path / "out") == expected_counts(WHOLE)


def test_output_that_is_owed_is_never_let_go(tmp_path: Path) -> None:
    """A plain savepoint commits nothing, so what its sinks had prepared would be lost."""
    savepoint = taken(with_second_branch(HALF, tmp_path), tmp_path / "state", "savepoint")
    with pytest.raises(WeirError, match="out2: the checkpoint holds output to commit for a sink that the job lacks"):
        restored(counts(WHOLE, tmp_path / "out"), savepoint, tmp_path / "state", allow_unmapped=True)


def test_a_new_step_before_a_finished_one_is_refused_before_anything_starts(tmp_path: Path, jobs: Jobs) -> None:
    """S0-24, S0-63: and one behind it is allowed (S0-62)."""
    last = ended(counts(Numbers(total=100), tmp_path / "out"), tmp_path / "state", jobs=jobs)

    def flow(before: bool) -> Dataflow:
        dataflow = Dataflow("counts")
        numbers = dataflow.source("numbers", Numbers(total=100))
        stepped = numbers.map_batches("step", same) if before else numbers
        counted = stepped.key_by("key").aggregate("counts", {"n": Count(), "total": Sum("value")})
        counted.sink("out", ParquetSink(str(tmp_path / "out")))
        if not before:
            counted.map_batches("step", same).sink("out2", ParquetSink(str(tmp_path / "out2")))
        return dataflow

    with pytest.raises(WeirError, match="step: it feeds 'counts', which had finished in the checkpoint"):
        restored(flow(before=True), last, tmp_path / "state", jobs=jobs)
    assert restored(flow(before=False), last, tmp_path / "state", jobs=jobs).state is RunState.FINISHED


def test_another_number_of_key_groups_is_refused_before_anything_starts(tmp_path: Path, jobs: Jobs) -> None:
    """S3-23: state of a key would be looked for elsewhere."""
    savepoint = taken(counts(HALF, tmp_path / "out"), tmp_path / "state", jobs=jobs)
    flow = counts(WHOLE, tmp_path / "out")
    flow.max_parallelism = 64
    with pytest.raises(WeirError, match="the checkpoint has 128 key groups, the job 64"):
        restored(flow, savepoint, tmp_path / "state", jobs=jobs)
    restored(counts(WHOLE, tmp_path / "out"), savepoint, tmp_path / "state", jobs=jobs)
    assert final_counts(tmp_path / "out") == expected_counts(WHOLE)


def with_two_sinks(source: Any, output: Path, bomb: Bomb, copies: str = "copies") -> Dataflow:
    """The counts, written twice into one folder."""
    flow = Dataflow("counts")
    numbers = flow.source("numbers", source).map_batches("bomb", bomb).key_by("key")
    counted = numbers.aggregate("counts", {"n": Count(), "total": Sum("value")})
    for uid in ("out", copies):
        counted.sink(uid, ParquetSink(str(output)))
    return flow


@pytest.mark.parametrize("copies", ["copies", "renamed"])
def test_two_sinks_in_one_folder_leave_alone_what_the_other_prepared_for_a_savepoint(
    tmp_path: Path, copies: str
) -> None:
    """A restart cleans leftovers; so does a job whose sink was renamed, before the old one is taken back."""
    bomb, source, settings = Bomb(), Gated(total=50), CoordinatorSettings(interval_ms=None)
    flow = with_two_sinks(source, tmp_path / "out", bomb)
    with running(
        flow.compile(2), tmp_path / "state", settings=settings, restart=FixedDelay(attempts=3, delay_ms=0)
    ) as run:
        run.wait_for(lambda: run.operator("numbers").get("records_out", 0) == source.total * source.splits)
        run.ask("savepoint")
        run.wait_for(lambda: "savepoint" in run.records.settled)
        (savepoint,) = run.records.completed
        bomb.arm()
        source.total += 10
        run.wait_for(lambda: run.records.token == 2 and run.operator("numbers").get("records_out", 0) > 0)
        run.end("cancel")
    renamed = MemoryRunStore(token=Token(5), completed=[savepoint])
    with running(
        with_two_sinks(source, tmp_path / "out", bomb, copies).compile(2), tmp_path / "state", renamed, settings
    ) as run:
        run.wait_for(lambda: run.operator("numbers").get("records_out", 0) > 0)
        run.end("cancel")
    numbers = Numbers(total=source.total)
    restored(with_two_sinks(numbers, tmp_path / "out", bomb), tmp_path / "state" / savepoint.folder, tmp_path / "state")
    rows = Counter((row["key"], row["n"], row["total"]) for row in committed(tmp_path / "out"))
    assert set(rows.values()) == {2}
    assert {(key, *last) for key, last in expected_counts(numbers).items()} <= rows.keys()


# ---------------------------------------------------------------- elsewhere


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the savepoint and the output of a job that was stopped half way."""
    folder = tmp_path_factory.mktemp("original")
    savepoint = taken(counts(HALF, folder / "out"), folder / "state")
    savepoint.rename(folder / "savepoint")
    return folder


@pytest.fixture
def moved(original: Path, tmp_path: Path) -> Path:
    """The savepoint, alone, under a name of its own; the output beside it, and nothing of the first storage."""
    shutil.copytree(original / "out", tmp_path / "out")
    return shutil.copytree(original / "savepoint", tmp_path / "backups" / "before the upgrade")


@pytest.mark.parametrize("is_uri", [True, False])
def test_a_savepoint_that_was_moved_restores_and_is_only_read(moved: Path, tmp_path: Path, is_uri: bool) -> None:
    before = {path: path.read_bytes() for path in moved.rglob("*") if path.is_file()}
    restored(counts(WHOLE, tmp_path / "out"), moved.as_uri() if is_uri else moved, tmp_path / "elsewhere")
    assert final_counts(tmp_path / "out") == expected_counts(WHOLE)
    assert {path: path.read_bytes() for path in moved.rglob("*") if path.is_file()} == before


def test_what_ended_subtasks_left_is_in_the_savepoint_too(tmp_path: Path, jobs: Jobs) -> None:
    """S0-18, S0-51: a source that has read everything takes part in no checkpoint, and is still known to have."""
    source = Numbers(total=50)

    def flow(numbers: Numbers) -> Dataflow:
        dataflow = counts(numbers, tmp_path / "out")
        dataflow.source("more", source).sink("out2", ParquetSink(str(tmp_path / "out2")))
        return dataflow

    with jobs.running(flow(HALF).compile(2), tmp_path / "state") as run:
        run.wait_for(lambda: run.operator("more").get("state") == "finished")
        run.checkpoints(2)
        savepoint = tmp_path / "state" / run.end("stop")
    assert "more" in run.manifests[-1].finished_operators()
    moved = savepoint.rename(tmp_path / "moved")
    restored(flow(WHOLE), moved, tmp_path / "elsewhere", jobs=jobs)
    assert len(committed(tmp_path / "out2")) == source.total * source.splits, "nothing was read again"
    assert final_counts(tmp_path / "out") == expected_counts(WHOLE)


def test_it_is_a_savepoint_of_the_job_from_then_on(moved: Path, tmp_path: Path) -> None:
    storage = tmp_path / "elsewhere"
    restored(counts(WHOLE, tmp_path / "out"), moved, storage)
    shutil.rmtree(moved)
    (home,) = storage.glob("savepoint-*")
    restored(counts(WHOLE, tmp_path / "again"), home, storage)


def test_a_copy_that_is_damaged_is_made_again(moved: Path, tmp_path: Path) -> None:
    storage = tmp_path / "elsewhere"
    restored(counts(WHOLE, tmp_path / "out"), moved, storage)
    (home,) = storage.glob("savepoint-*")
    file = max(home.rglob("*.arrow"), key=lambda path: path.stat().st_size)
    data = file.read_bytes()
    file.write_bytes(data[:-10])
    restored(counts(WHOLE, tmp_path / "again"), moved, storage)
    assert file.read_bytes() == data
    assert final_counts(tmp_path / "again") == expected_counts(WHOLE)


def test_a_savepoint_of_another_job_is_refused(moved: Path, tmp_path: Path) -> None:
    flow = counts(WHOLE, tmp_path / "out")
    flow.name = "other"
    with pytest.raises(WeirError, match="it belongs to job counts, not to job other"):
        restored(flow, moved, tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists(), "nothing was copied"


def test_a_periodic_checkpoint_cannot_be_moved(tmp_path: Path) -> None:
    last = ended(counts(WHOLE, tmp_path / "out"), tmp_path / "state")
    copy = shutil.copytree(last, tmp_path / "copy")
    with pytest.raises(WeirError, match="only a savepoint can be moved"):
        restored(counts(WHOLE, tmp_path / "out"), copy, tmp_path / "elsewhere")


def test_another_savepoint_of_the_same_name_is_not_overwritten(tmp_path: Path) -> None:
    """One of another installation may have the same job, number and attempt."""
    savepoint, foreign = (taken(counts(HALF, tmp_path / name / "out"), tmp_path / name) for name in ("own", "foreign"))
    home = savepoint.rename(savepoint.with_name(foreign.name))
    content = (home / "manifest.json").read_bytes()
    with pytest.raises(WeirError, match=f"the job has another savepoint called {foreign.name}"):
        restored(counts(WHOLE, tmp_path / "out"), foreign, tmp_path / "own")
    assert (home / "manifest.json").read_bytes() == content


# ---------------------------------------------------------------- damaged


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_damaged_savepoint_is_named_and_nothing_is_written(moved: Path, tmp_path: Path) -> None:
    home = manifest_folder(decode_manifest((moved / "manifest.json").read_bytes(), "manifest.json"))
    before = output_in(tmp_path / "out")
    harms: tuple[Callable[[Path], None], ...] = (shorten, flip, Path.unlink)
    cases = itertools.product(harms, ("manifest.json", "*/*.arrow"), (False, True))
    for number, (harm, pattern, elsewhere) in enumerate(cases):
        storage = tmp_path / f"storage-{number}"
        place = shutil.copytree(moved, tmp_path / f"moved-{number}" if elsewhere else storage / home)
        victim = min(place.glob(pattern))
        harm(victim)
        with pytest.raises(WeirError, match=victim.name):
            restored(counts(WHOLE, tmp_path / "out"), place, storage)
        assert output_in(tmp_path / "out") == before


def output_in(folder: Path) -> list[str]:
    """Prepared or committed; commit marks go when no manifest may ask for them."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith(".committed-"))


# ---------------------------------------------------------------- crafted


def rewritten(savepoint: Path, change: Callable[[Manifest], Manifest], keys: SigningKeys = ()) -> None:
    """Replaces the manifest by one whose checksum is right: an attacker computes it like anybody else."""
    file = savepoint / "manifest.json"
    file.write_bytes(encode_manifest(change(decode_manifest(file.read_bytes(), "")), keys))


def test_a_crafted_savepoint_moves_no_file(tmp_path: Path) -> None:
    """The name of a file to commit was joined to the output folder as it stood: `../../../victim.txt` was moved.

    It was also kept in the job's storage, where it took the place of the savepoint that it is a forgery of.
    """
    place = taken(counts(HALF, tmp_path / "out"), tmp_path / "state", "savepoint").rename(tmp_path / "moved")
    genuine = Path(shutil.copytree(place, tmp_path / "genuine"))
    victim = tmp_path / "victim.txt"
    victim.write_text("1234")
    crafted = {"pending": "../victim.txt", "final": "stolen.parquet", "rows": 1, "bytes": 4}

    def change(manifest: Manifest) -> Manifest:
        sink = manifest.operators["out"]
        subtasks = {0: msgspec.structs.replace(sink.subtasks[0], committables=(crafted,))}
        operators = {**manifest.operators, "out": msgspec.structs.replace(sink, subtasks=subtasks)}
        return msgspec.structs.replace(manifest, operators=operators)

    rewritten(place, change)
    with pytest.raises(WeirError, match=r"that this sink has not written .*victim\.txt"):
        restored(counts(WHOLE, tmp_path / "out"), place, tmp_path / "elsewhere")
    assert victim.read_text() == "1234"
    assert not list(tmp_path.rglob("stolen.parquet"))
    restored(counts(WHOLE, tmp_path / "out"), genuine, tmp_path / "elsewhere")


def test_with_a_key_only_signed_savepoints_are_restored_from_elsewhere(tmp_path: Path) -> None:
    key, foreign_key = b"o" * 32, b"t" * 32
    place = taken(counts(HALF, tmp_path / "out"), tmp_path / "state").rename(tmp_path / "moved")
    set_signing_keys((key,))
    try:
        for keys in ((), (foreign_key,)):
            rewritten(place, lambda manifest: manifest, keys)
            with pytest.raises(WeirError, match="signature"):
                restored(counts(WHOLE, tmp_path / "out"), place, tmp_path / "elsewhere")
        rewritten(place, lambda manifest: manifest, (key,))
        restored(counts(WHOLE, tmp_path / "out"), place, tmp_path / "elsewhere")
    finally:
        set_signing_keys(())
    assert final_counts(tmp_path / "out") == expected_counts(WHOLE)
    for file in (tmp_path / "elsewhere").rglob("manifest.json"):
        assert decode_manifest(file.read_bytes(), "", (key,), signed=True), "what this process writes is signed"
