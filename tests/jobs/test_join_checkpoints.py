"""Each periodic checkpoint of a join holds every row that the join keeps, and a restore from it loses no pair."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import weir
from runtime.core.snapshot.manifest import Manifest
from runtime.operators.joins.stored_rows import StoredRows
from runtime.state.primary_key import PrimaryKey
from runtime.task.task import FAILED_MERGES_COUNTER
from tests.jobs.conftest import Jobs
from tests.jobs.live import positions_in, restored_state, running
from tests.jobs.mortal import Deaths
from tests.jobs.numbers import committed
from tests.jobs.test_joins import Dies
from tests.jobs.test_windows import Clocked
from tests.state.test_proofs import newest_rows_by_key_columns

SPLITS, KEYS = 4, 101
ROUNDS, ROWS_PER_ROUND = 30, 5  #: enough for merges: the last test plants a fault in them
TIME = ("value", "value")
Join = Callable[[weir.KeyedStream, weir.KeyedStream], weir.Stream]


def interval_join(left: weir.KeyedStream, right: weir.KeyedStream) -> weir.Stream:
    hour = timedelta(hours=1)
    return left.interval_join(right).between("pairs", -hour, hour, time=TIME, suffixes=("", "_2"))


def window_join(left: weir.KeyedStream, right: weir.KeyedStream) -> weir.Stream:
    return left.join(right).window("pairs", timedelta(hours=1), time=TIME, suffixes=("", "_2"))


def kept_rows(manifest: Manifest, root: Path) -> int:
    """Rows of both streams in the state of the join."""
    state = restored_state(manifest, "pairs", root)
    sides = [StoredRows(state.object_table(name), bucket_ms=1) for name in ("first", "second")]
    return sum(rows.num_rows for side in sides for _, _, rows in side.restored())


def read_rows(manifest: Manifest, root: Path) -> int:
    return sum(sum(positions_in(manifest, root, SPLITS, uid)) for uid in ("left", "right"))


@pytest.mark.parametrize("join", [interval_join, window_join])
def test_each_checkpoint_of_a_join_holds_every_row_that_was_read(tmp_path: Path, jobs: Jobs, join: Join) -> None:
    """S4-15: also after a SIGKILL, from whose newest checkpoint the pairs are exact."""
    left, right, deaths, storage = Clocked(0, keys=KEYS), Clocked(0, keys=KEYS), Deaths(), tmp_path / "state"
    flow = weir.Dataflow("joins")
    first = flow.source("left", left).map_batches("dies", Dies(deaths)).key_by("key")
    join(first, flow.source("right", right).key_by("key")).sink("out", weir.ParquetSink(str(tmp_path / "out")))
    restart = weir.FixedDelay(attempts=1, delay_ms=20)
    with jobs.running(flow.compile(1), storage, restart=restart) as run:
        token = run.records.token
        for _ in range(ROUNDS):
            left.total += ROWS_PER_ROUND
            right.total += ROWS_PER_ROUND
            run.checkpoints(1)
        deaths.add("rows: batch")
        left.total += ROWS_PER_ROUND
        run.wait_for(lambda: run.records.token > token)
        right.total += ROWS_PER_ROUND
        complete = [left.total] * SPLITS
        run.wait_for(lambda: run.manifests and positions_in(run.manifests[-1], storage, SPLITS, "left") == complete)
        run.end("drain")
    periodic = [manifest for manifest in run.manifests if not manifest.kind.is_savepoint]
    lacking = {m.checkpoint: (kept_rows(m, storage), read_rows(m, storage)) for m in periodic}
    assert {number: rows for number, rows in lacking.items() if rows[0] != rows[1]} == {}, "kept and read rows"
    keys = pa.array([(value * 31 + split) % KEYS for value in range(left.total) for split in range(SPLITS)])
    pairs = sum(count.as_py() ** 2 for count in keys.value_counts().field("counts"))
    assert len(committed(tmp_path / "out")) == pairs


def test_a_merge_that_would_lose_rows_is_refused_and_counted_for_the_console(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule `state-unmerged` of the console shows the counter. No checkpoint lacks a row. Slots are threads."""
    monkeypatch.setattr(PrimaryKey, "newest_rows", newest_rows_by_key_columns)
    left, right, storage = Clocked(0, keys=KEYS), Clocked(0, keys=KEYS), tmp_path / "state"
    flow = weir.Dataflow("joins")
    first, second = flow.source("left", left).key_by("key"), flow.source("right", right).key_by("key")
    interval_join(first, second).sink("out", weir.DiscardSink())
    with running(flow.compile(1), storage) as run:
        for _ in range(ROUNDS):
            left.total += ROWS_PER_ROUND
            right.total += ROWS_PER_ROUND
            run.checkpoints(1)
        run.wait_for(lambda: run.records.live["operators"]["pairs"]["counters"].get(FAILED_MERGES_COUNTER))
        run.end("stop")
    assert [(kept_rows(each, storage), each.checkpoint) for each in run.manifests] == [
        (read_rows(each, storage), each.checkpoint) for each in run.manifests
    ]
