"""Savepoints of every format version that was ever released restore, with all that is in them."""

from pathlib import Path

import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import RunState
from runtime.core.snapshot.manifest import FORMAT_VERSION, FinishedState
from runtime.core.snapshot.manifest_codec import MANIFEST_FILE, decode_manifest
from runtime.io.memory.run_store import MemoryRunStore
from tests.golden.job import HALF, KEYS, RULES, SPLITS, WHOLE, Steps, Tally, job, row
from tests.golden.make import make
from tests.jobs.live import running
from tests.jobs.numbers import committed

GOLDEN = sorted(Path(__file__).parent.glob("format-*"))


def restored(savepoint: Path, folder: Path) -> Tally:
    """Runs the job from `savepoint` to its end, at another parallelism."""
    tally, records = Tally(), MemoryRunStore(token=Token(9), restore_from=str(savepoint))
    sinks = ParquetSink(str(folder / "counted")), ParquetSink(str(folder / "kept"))
    with running(job(Steps(WHOLE, SPLITS), tally, *sinks).compile(3), folder / "state", records) as run:
        run.join()
    assert records.failure is None, records.failure
    assert records.state is RunState.FINISHED
    return tally


def check_output(folder: Path) -> None:
    """What comes out holds what was counted before the savepoint."""
    rows = [row(split, value) for split in range(SPLITS) for value in range(WHOLE)]
    by_key = {key: [entry for entry in rows if entry["key"] == key] for key in range(KEYS)}
    entries = {entry["key"]: entry for entry in committed(folder / "kept")}
    assert {key: (entry["n"], entry["seen"], entry["newest"]) for key, entry in entries.items()} == {
        key: (len(group), len({entry["value"] for entry in group}), f"key {key}") for key, group in by_key.items()
    }
    last = {entry["key"]: entry for entry in sorted(committed(folder / "counted"), key=lambda entry: entry["n"])}
    for key, group in by_key.items():
        values = [entry["value"] for entry in group]
        totals = last[key]
        assert (totals["n"], totals["even"]) == (len(group), sum(entry["even"] for entry in group))
        assert (totals["total"], totals["least"], totals["most"]) == (sum(values), min(values), max(values))
        assert totals["mean"] == pytest.approx(sum(values) / len(values))


@pytest.mark.parametrize("savepoint", GOLDEN, ids=lambda path: path.name)
def test_a_savepoint_of_this_format_restores(savepoint: Path, tmp_path: Path) -> None:
    tally = restored(savepoint, tmp_path)
    assert sum(sum(counts) for counts, _, _ in tally.opened) == HALF * SPLITS
    assert all(parts == ["part 0", "part 1"] for _, parts, _ in tally.opened)
    expected = {row(0, value)["name"]: value for value in range(RULES)}
    assert all(rules == expected for _, _, rules in tally.opened)
    check_output(tmp_path)


@pytest.mark.parametrize("savepoint", GOLDEN, ids=lambda path: path.name)
def test_a_golden_savepoint_holds_what_it_is_there_for(savepoint: Path) -> None:
    manifest = decode_manifest((savepoint / MANIFEST_FILE).read_bytes(), MANIFEST_FILE)
    assert savepoint.name == f"format-{manifest.format}"
    assert manifest.finished_operators() == ("rules",)
    snapshots = [
        snapshot
        for uid in ("numbers", "tally", "counts", "kept")
        for snapshot in manifest.operators[uid].subtasks.values()
    ]
    assert all(manifest.operators[uid].finished is FinishedState.RUNNING for uid in ("numbers", "tally"))
    for kind in ("keyed", "broadcast", "lists", "unions"):
        assert any(getattr(snapshot, kind) for snapshot in snapshots), kind
    assert sum(file.stat().st_size for file in savepoint.rglob("*") if file.is_file()) < 100_000


def test_the_present_format_has_one_and_its_script_still_makes_it(tmp_path: Path) -> None:
    assert GOLDEN[-1].name == f"format-{FORMAT_VERSION}"
    make(tmp_path / "savepoint")
    restored(tmp_path / "savepoint", tmp_path)
    check_output(tmp_path)
