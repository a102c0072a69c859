"""What a checkpoint of a real job holds: one instant of all operators, in storage alone, and nothing from channels."""

import hashlib
import shutil
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import RunState
from runtime.core.snapshot.manifest import Manifest
from runtime.io.filesystem import FileStore
from runtime.io.manifests import read_manifest
from runtime.io.memory.run_store import MemoryRunStore
from tests.jobs.conftest import Jobs
from tests.jobs.live import counts_in, positions_in
from tests.jobs.numbers import Numbers, counts, expected_counts, final_counts

#: Never hurries: a barrier passes few batches, so that checkpoints follow one another while it reads.
SOURCE = Numbers(total=20_000, splits=5, batch=20, unbounded=True, slow_until="/never")


def folded(positions: list[int]) -> dict[int, tuple[int, int]]:
    """The counts of the rows before `positions`."""
    counts: dict[int, tuple[int, int]] = {}
    for split, position in enumerate(positions):
        for value in range(position):
            key = (value * 31 + split) % SOURCE.keys
            n, total = counts.get(key, (0, 0))
            counts[key] = (n + 1, total + value)
    return counts


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory, jobs: Jobs) -> tuple[Path, list[Manifest]]:
    """Every checkpoint of a job over a shuffle at parallelism 3, taken while it reads, and their storage."""
    folder = tmp_path_factory.mktemp("cut")
    with jobs.running(counts(SOURCE, folder / "out").compile(3), folder / "state") as run:
        run.wait_for(lambda: len(run.manifests) >= 8 and positions_in(run.manifests[-1], folder / "state", 5)[0] > 0)
        run.end("cancel")
    return folder / "state", run.manifests


def test_state_and_position_are_of_one_instant(checkpoints: tuple[Path, list[Manifest]]) -> None:
    """S1-20, S3-46, S3-54, S4-01, S4-15, S4-16: one instant in every checkpoint.

    The counts are those of exactly the rows before its barriers.
    """
    root, manifests = checkpoints
    cuts = [positions_in(manifest, root, SOURCE.splits) for manifest in manifests]
    assert len({tuple(positions) for positions in cuts}) > 2, "taken while records flowed"
    for manifest, positions in zip(manifests, cuts, strict=True):
        assert counts_in(manifest, root, SOURCE.keys) == folded(positions)


def test_a_snapshot_is_the_states_of_all_operators_and_nothing_from_channels(
    checkpoints: tuple[Path, list[Manifest]],
) -> None:
    """S4-13, S4-28, S4-03, S0-16: by operator and subtask; without a cycle no record on its way is ever saved."""
    _, manifests = checkpoints
    for manifest in manifests:
        assert {uid: sorted(o.subtasks) for uid, o in manifest.operators.items()} == {
            uid: [0, 1, 2] for uid in ("numbers", "counts", "out")
        }
        saved = {
            (uid, name)
            for uid, operator in manifest.operators.items()
            for snapshot in operator.subtasks.values()
            for name in (*snapshot.keyed, *snapshot.broadcast, *snapshot.lists)
        }
        assert saved <= {("numbers", "positions"), ("counts", "aggregates")}, "declared state, no channel's records"


def test_state_goes_to_storage_as_arrow_with_checksums(checkpoints: tuple[Path, list[Manifest]]) -> None:
    """S1-18: per checkpoint a folder; nothing in it is a pickle, and every byte is vouched for."""
    root, manifests = checkpoints
    for manifest in manifests:
        (folder,) = [path for path in root.iterdir() if path.name.startswith(f"chk-{manifest.checkpoint}-")]
        msgspec.json.decode((folder / "manifest.json").read_bytes())
        for segment in manifest.segments():
            data = segment.content or (root / segment.path).read_bytes()
            kind, _, digest = segment.checksum.partition(":")
            assert kind == "blake2b"
            assert hashlib.blake2b(data, digest_size=len(digest) // 2).hexdigest() == digest
            assert pa.ipc.open_stream(data).read_all().num_rows == segment.rows
    paths = {segment.path for manifest in manifests for segment in manifest.files()}
    files = {str(path.relative_to(root)) for path in root.rglob("*.arrow")}
    assert paths <= files
    assert {path.suffix for path in root.rglob("*") if path.is_file()} <= {".arrow", ".json"}


def test_a_restore_needs_nothing_but_the_storage(tmp_path: Path, jobs: Jobs) -> None:
    """S1-09, S1-19, S0-11: it is carried to another place, and everything that the slots had is gone."""
    source = Numbers(total=1_500, splits=5, batch=20, unbounded=True)
    first, second = tmp_path / "first", tmp_path / "second"
    with jobs.running(counts(source, tmp_path / "out").compile(2), first) as run:
        run.wait_for(lambda: run.operator("numbers").get("records_out", 0) > 0)
        savepoint = run.end("stop")
    shutil.move(first, second)
    saved = positions_in(read_manifest(FileStore(str(second)), savepoint), second, source.splits)
    numbers = Numbers(total=1_500, splits=5, batch=20)
    records = MemoryRunStore(token=Token(7), restore_from=savepoint)
    jobs.run_to_end(counts(numbers, tmp_path / "out").compile(3), second, records)
    assert records.state is RunState.FINISHED
    assert sum(saved) > 0
    assert final_counts(tmp_path / "out") == expected_counts(numbers)
