"""Whole jobs that set rows aside: dead letters and their replay are exact while processes end by SIGKILL."""

import os
import signal
import threading
import time
from collections import Counter as Multiset
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import weir
from runtime.core.job.ids import Token
from runtime.io.memory.run_store import MemoryRunStore
from runtime.operators.functions.set_aside import DEAD_LETTER
from tests.contracts.files import Reading, drop
from tests.jobs.conftest import Jobs
from tests.jobs.live import running
from tests.jobs.numbers import SCHEMA, Numbers, committed
from tests.shared import Shared

AGAIN = weir.FixedDelay(attempts=100, delay_ms=30)
KEYS = 10_007  #: so large that key and value are unique among all splits
EXPECTED = Multiset(((value * 31 + split) % KEYS, value) for split in range(4) for value in range(750))
POISON = Multiset({row: 1 for row in EXPECTED if row[1] % 3 == 0})


class Kills(Shared):
    """Rows at which a process of the job ends, each once."""

    def __init__(self, *values: int) -> None:
        self.values, self.home = list(values), os.getpid()
        self._lock = threading.Lock()

    def take(self, value: int) -> bool:
        with self._lock:
            if value not in self.values:
                return False
            self.values.remove(value)
            return True


class Step:
    """Raises for every third value, unless it is mended. A millisecond a row, so that several checkpoints are taken."""

    def __init__(self, kills: Kills, is_mended: bool = False) -> None:
        self._kills, self._home, self._is_mended = kills, os.getpid(), is_mended
        self._at = frozenset(kills.values)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.001)
        if row["value"] in self._at and self._kills.take(row["value"]):
            if os.getpid() != self._home:
                os.kill(os.getpid(), signal.SIGKILL)
            raise weir.EnvironmentFailure("the process ends")
        if row["value"] % 3 == 0 and not self._is_mended:
            raise LookupError(f"no price of {row['value']}")
        return row


def job(folder: Path, step: Step, *, bounded: bool, replay: bool = False) -> weir.Dataflow:
    flow = weir.Dataflow("aside", required_guarantee="exactly-once")
    source = weir.DirectorySource(str(folder / "in"), weir.JsonLinesFormat(SCHEMA), bounded=True, split_bytes=1_000)
    rows = flow.source("numbers", source if bounded else Numbers(750, batch=20, keys=KEYS, unbounded=True))
    if replay:
        letters = flow.source("letters", weir.dead_letters(str(folder / "letters"), pc.field("operator") == "price"))
        rows = rows.union("all", letters.map_batches("again", weir.dead_letter_rows(SCHEMA)))
    policy = weir.SetAside(str(folder / "letters"), max_per_minute=10_000)
    priced = rows.map("price", step, SCHEMA, on_error=policy, repeatable=True)
    once = priced.key_by("key").process("passed", Passes, SCHEMA)
    once.sink("out", weir.ParquetSink(str(folder / "out")))
    return flow


class Passes(weir.KeyedProcessFunction):
    def process(self, row: dict[str, Any], context: weir.ProcessContext, out: weir.RowCollector) -> None:
        out.emit(row)


def output(folder: Path) -> Multiset[tuple[int, int]]:
    return Multiset((row["key"], row["value"]) for row in committed(folder / "out"))


def dead_letters(folder: Path) -> list[dict[str, Any]]:
    return Reading(weir.dead_letters(str(folder / "letters"))).rows()


def rows_set_aside(letters: list[dict[str, Any]]) -> Multiset[tuple[int, int]]:
    rows = weir.dead_letter_rows(SCHEMA)(pa.RecordBatch.from_pylist(letters, DEAD_LETTER)).to_pylist()
    return Multiset((row["key"], row["value"]) for row in rows)


def test_each_row_passes_once_or_is_a_dead_letter_once_while_processes_are_killed(tmp_path: Path, jobs: Jobs) -> None:
    """S1-14: the source numbers its rows, so slots behind the shuffle would survive a failure if the step let them."""
    drop(tmp_path / "in", "rows.jsonl", "".join(f'{{"key": {key}, "value": {value}}}\n' for key, value in EXPECTED))
    kills = Kills(100, 301, 600)
    flow = job(tmp_path, Step(kills), bounded=True)
    records = jobs.run_to_end(flow.compile(2), tmp_path / "state", restart=AGAIN)
    assert not kills.values
    assert len(records.attempts) > 1
    assert len(records.completed) > 3
    letters = dead_letters(tmp_path)
    assert rows_set_aside(letters) == POISON
    assert output(tmp_path) == EXPECTED - POISON
    assert {(letter["operator"], letter["error"]) for letter in letters} == {("price", "LookupError")}


def test_dead_letters_are_replayed_once_while_processes_are_killed(tmp_path: Path, jobs: Jobs) -> None:
    """S1-20: a thousand dead letters, by a new version of the job. Its next run replays none."""
    flow = job(tmp_path, Step(Kills()), bounded=False)
    with jobs.running(flow.compile(2), tmp_path / "state") as run:
        run.wait_for(lambda: sum(output(tmp_path).values()) == 2_000)
        savepoint = run.end("stop")
    assert rows_set_aside(dead_letters(tmp_path)) == POISON
    assert sum(POISON.values()) == 1_000

    kills = Kills(150, 450)
    mended = job(tmp_path, Step(kills, is_mended=True), bounded=False, replay=True)
    records = MemoryRunStore(token=Token(100), restore_from=savepoint)
    with jobs.running(mended.compile(2), tmp_path / "state", records, restart=AGAIN) as run:
        run.wait_for(lambda: sum(output(tmp_path).values()) >= 3_000)
        assert not kills.values
        assert len(records.attempts) > 1
        run.checkpoints(2)
        savepoint = run.end("stop")
    assert output(tmp_path) == EXPECTED

    mended = job(tmp_path, Step(Kills(), is_mended=True), bounded=False, replay=True)
    records = MemoryRunStore(token=Token(200), restore_from=savepoint)
    with jobs.running(mended.compile(3), tmp_path / "state", records, restart=AGAIN) as run:
        run.checkpoints(2)
        run.end("stop")
    assert output(tmp_path) == EXPECTED
    assert rows_set_aside(dead_letters(tmp_path)) == POISON


def broken(row: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.005)
    raise KeyError("price")


def test_a_function_that_is_broken_fails_the_job_and_restarts_allow_no_further_rows(tmp_path: Path) -> None:
    flow = weir.Dataflow("broken")
    policy = weir.SetAside(str(tmp_path / "letters"), max_per_minute=20)
    rows = flow.source("numbers", Numbers(100, splits=1, batch=4)).map("price", broken, SCHEMA, on_error=policy)
    rows.sink("out", weir.DiscardSink())
    with running(flow.compile(1), tmp_path / "state", restart=weir.FixedDelay(attempts=4, delay_ms=30)) as run:
        run.join()
    assert run.records.failure is not None
    assert "KeyError: 'price'" in run.records.failure["message"]
    assert run.records.completed, "a restart goes on behind the rows that were set aside before"
    assert 0 < len(dead_letters(tmp_path)) <= 20


def test_a_version_without_the_policy_goes_on_from_a_stop(tmp_path: Path) -> None:
    flow = job(tmp_path, Step(Kills()), bounded=False)
    with running(flow.compile(2), tmp_path / "state") as run:
        run.wait_for(lambda: sum(output(tmp_path).values()) > 100)
        savepoint = run.end("stop")
    flow = weir.Dataflow("aside")
    rows = flow.source("numbers", Numbers(750, batch=20, keys=KEYS, unbounded=True))
    priced = rows.map("price", Step(Kills(), is_mended=True), SCHEMA, repeatable=True)
    priced.key_by("key").process("passed", Passes, SCHEMA).sink("out", weir.ParquetSink(str(tmp_path / "out")))
    records = MemoryRunStore(token=Token(100), restore_from=savepoint)
    with running(flow.compile(2), tmp_path / "state", records) as run:
        total = 3_000 - len(dead_letters(tmp_path))
        run.wait_for(lambda: sum(output(tmp_path).values()) == total)
        run.end("stop")
    assert output(tmp_path) + rows_set_aside(dead_letters(tmp_path)) == EXPECTED
