"""A clone of a job: it continues from the state of a snapshot and leaves the output of the job alone."""

from collections.abc import Mapping
from pathlib import Path

from runtime.connectors.sinks.discard import STATE_NAME, DiscardSink
from runtime.core.job.ids import Token
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.clone_manifest import clone_manifest
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, decode_manifest, encode_manifest, manifest_folder
from runtime.io.memory.run_store import MemoryRunStore
from tests.jobs.conftest import Jobs
from tests.jobs.live import counts_in
from tests.jobs.numbers import Numbers, counts, expected_counts

HALF = Numbers(total=300, unbounded=True)
WHOLE = Numbers(total=500, unbounded=True)
ON_REQUEST = CoordinatorSettings(interval_ms=None)  #: no checkpoint commits what the sinks have prepared


def files_below(folder: Path) -> Mapping[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_clone_goes_on_from_the_state_and_touches_no_output(tmp_path: Path) -> None:
    """The savepoint owes output that no sink has committed; a restore would commit it, and a clone must not."""
    jobs, flow = Jobs(None), counts(HALF, tmp_path / "out").compile(2)
    with jobs.running(flow, tmp_path / "state", settings=ON_REQUEST) as run:
        run.wait_for(lambda: run.operator("numbers").get("records_out", 0) >= HALF.total * HALF.splits)
        run.ask("savepoint")
        run.wait_for(lambda: "savepoint" in run.records.settled)
        folder = tmp_path / "state" / run.records.completed[-1].folder
        before = files_below(tmp_path / "out")
        manifest = decode_manifest((folder / MANIFEST_FILE).read_bytes(), "manifest")
        assert any(snapshot.committables for snapshot in manifest.operators["out"].subtasks.values()), "output is owed"

        clone, origins = clone_manifest(manifest, "counts", {"out"})
        storage = tmp_path / "clone"
        for segment in clone.segments():
            target = storage / segment.path
            target.parent.mkdir(parents=True, exist_ok=True)
            origin = origins.get(segment.path, segment)
            target.write_bytes(origin.content or (tmp_path / "state" / origin.path).read_bytes())
        (storage / manifest_folder(clone)).mkdir(parents=True, exist_ok=True)
        (storage / manifest_folder(clone) / MANIFEST_FILE).write_bytes(encode_manifest(clone))
        beside = counts(WHOLE, tmp_path / "out")
        beside.isolate(DiscardSink())
        records = MemoryRunStore(token=Token(9), restore_from=manifest_folder(clone))
        with jobs.running(beside.compile(3), storage, records, settings=ON_REQUEST) as drill:
            row_count = (WHOLE.total - HALF.total) * WHOLE.splits
            drill.wait_for(lambda: drill.operator("numbers").get("records_out", 0) >= row_count)
            drill.ask("stop")
            drill.wait_for(lambda: "stop" in drill.records.settled)
            drill.join()
        last = drill.records.completed[-1].manifest
        assert counts_in(last, storage, WHOLE.keys) == expected_counts(WHOLE)
        discarded = [
            entry for snapshot in last.operators["out"].subtasks.values() for entry in snapshot.lists[STATE_NAME]
        ]
        assert sum(entry["rows"] for entry in discarded) > 0
        assert files_below(tmp_path / "out") == before, "the clone has committed and cleaned nothing"
