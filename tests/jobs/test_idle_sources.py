"""Idle subtasks of a source beside active subtasks: rows that arrive in order are not late."""

import threading
from collections.abc import Callable, Container
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

from runtime.connectors.formats.json_lines import JsonLinesFormat
from runtime.connectors.sinks.collect import CollectSink
from runtime.connectors.sources.directory import DirectorySource
from runtime.connectors.sources.listing import ListedFile
from runtime.connectors.sources.local_folder import LocalFolder
from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.plan import CompiledJob
from runtime.operators.aggregates import Count
from tests.jobs import live
from tests.small_states import DEPLOYMENT_OF_SLOTS, small_deployment
from tests.task.tasks import CREDIT

SCHEMA: Final = pa.schema([("key", pa.int64()), ("at", pa.int64())])
KEYS: Final = 10
LISTINGS: Final = 10  #: of the other subtask: by then it has read the files and sent their rows and watermarks
RARELY: Final = CoordinatorSettings(interval_ms=None)


class SlowListings:
    """Listings of slot 1 hang while `hangs`, until slot 0 has listed the folder `LISTINGS` times."""

    def __init__(self) -> None:
        self.hangs = False
        self.listings = {"slot-0": 0, "slot-1": 0}
        self._listed = threading.Condition()

    def on_listing(self) -> None:
        name = threading.current_thread().name
        with self._listed:
            if self.hangs and name == "slot-1":
                self._listed.wait_for(lambda: not self.hangs, live.PATIENCE_S)
            self.listings[name] = self.listings.get(name, 0) + 1
            if self.hangs and self.listings["slot-0"] >= LISTINGS:
                self.hangs = False
            self._listed.notify_all()

    def begin(self, write: Callable[[], None]) -> None:
        """Hangs from the end of the listings in progress on, then writes: slot 1 sees the files later than slot 0."""
        with self._listed:
            counts = dict(self.listings)
            assert self._listed.wait_for(
                lambda: all(self.listings[name] > count for name, count in counts.items()), live.PATIENCE_S
            )
            self.hangs, self.listings["slot-0"] = True, 0
            write()


@pytest.fixture
def slow_listings(monkeypatch: pytest.MonkeyPatch) -> SlowListings:
    """With credit for all rows: slot 0 would not list while slot 1, which hangs, returns none."""
    monkeypatch.setattr(DEPLOYMENT_OF_SLOTS, partial(small_deployment, flow=CREDIT))
    gate, files = SlowListings(), LocalFolder.files

    def listed(folder: LocalFolder, known: Container[str] = ()) -> list[ListedFile]:
        gate.on_listing()
        return files(folder, known)

    monkeypatch.setattr(LocalFolder, "files", listed)
    return gate


def write_burst(folder: Path, first: int, count: int = 8) -> None:
    """Files in the order of time: file n has a row of each key in second n."""
    for number in range(first, first + count):
        rows = "".join(f'{{"key": {key}, "at": {number * 1_000 + key}}}\n' for key in range(KEYS))
        hidden = folder / f".{number:04}"
        hidden.write_text(rows)
        hidden.rename(folder / f"{number:04}.jsonl")


def windows(folder: Path, sink: CollectSink, idle_after_ms: int | None) -> CompiledJob:
    source = DirectorySource(
        str(folder), JsonLinesFormat(SCHEMA), event_time="at", discovery_interval_ms=1, idle_after_ms=idle_after_ms
    )
    flow = Dataflow("bursts")
    rows = flow.source("rows", source).map_batches("same", lambda batch: batch)
    rows.key_by("key").window("windows", timedelta(seconds=1), "at", {"n": Count()}).sink("out", sink)
    return flow.compile(2)


def late_rows(run: live.Run) -> int:
    return int(run.records.live["counters"].get("late_records", 0))


@pytest.mark.parametrize("idle_after_ms", [None, 1], ids=["without-files", "after-files"])
def test_files_in_order_are_not_late_where_a_subtask_lists_them_later(
    tmp_path: Path, slow_listings: SlowListings, idle_after_ms: int | None
) -> None:
    """A subtask without a file is idle, and one that has read its files after `idle_after_ms`."""
    folder, sink = tmp_path / "in", CollectSink()
    folder.mkdir()
    with live.running(windows(folder, sink, idle_after_ms), tmp_path / "state", settings=RARELY) as run:
        run.wait_for(lambda: all(slow_listings.listings.values()))
        count = 8
        if idle_after_ms is not None:
            write_burst(folder, 0)
            run.wait_for(lambda: run.operator("rows").get("records_out") == 8 * KEYS)
            run.wait_for(lambda: all(subtask["idle"] for subtask in run.operator("rows")["subtasks"]))
            count = 16
        slow_listings.begin(lambda: write_burst(folder, count - 8))
        run.wait_for(lambda: run.operator("rows").get("records_out") == count * KEYS)
        run.end("drain")
    assert late_rows(run) == 0
    assert sorted(row["n"] for row in sink.rows()) == [1] * KEYS * count
