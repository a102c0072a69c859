"""The files of snapshots beside which the console's benchmark measures pages."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from pytest_django.fixtures import Settings

from benchmarks.console.snapshots import ROWS, store_snapshots
from console.checkpoints.models import Checkpoint
from console.checkpoints.storage import load_manifest
from runtime.core.restore.mapping import OperatorMatch, RestoreTarget, mapping_report
from runtime.core.snapshot.contents import stored_states
from runtime.io.filesystem import FileStore
from runtime.state.files.segments import read_segment
from tests.core.builders import chain

GRAPH = {**chain(parallelism=2).to_json(), "max_parallelism": 128}
AT = datetime(2026, 11, 27, tzinfo=UTC)


@pytest.fixture
def rows(tmp_path: Path, settings: Settings) -> list[Checkpoint]:
    settings.WEIR_STORAGE = tmp_path
    checkpoints = [
        Checkpoint(job_id=7, number=number, token=3, kind=kind, path=f"{folder}-{number}-3", triggered_at=AT)
        for number, kind, folder in ((1, "checkpoint", "chk"), (2, "checkpoint", "chk"), (3, "savepoint", "savepoint"))
    ]
    store_snapshots(checkpoints, GRAPH)
    return checkpoints


def test_the_console_reads_and_maps_each_snapshot(rows: list[Checkpoint]) -> None:
    for row in rows:
        manifest = load_manifest(row)
        assert [(state.operator, state.rows) for state in stored_states(manifest)] == [(uid, ROWS) for uid in "abc"]
        report = mapping_report(manifest, msgspec.convert(GRAPH, RestoreTarget), "7")
        assert {operator.fate for operator in report.operators} == {OperatorMatch.MATCHED}
        assert not report.all_problems


def test_checkpoints_share_files_which_the_checksums_cover(rows: list[Checkpoint], tmp_path: Path) -> None:
    first, second, savepoint = ([segment.path for segment in load_manifest(row).files()] for row in rows)
    assert first == second
    assert {path.split("/")[0] for path in savepoint} == {"savepoint-3-3"}
    store = FileStore(tmp_path / "7")
    assert sum(read_segment(store, segment).num_rows for segment in load_manifest(rows[2]).files()) == 3 * ROWS
