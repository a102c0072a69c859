"""Subtasks behind a shuffle keep their state while the sources restart, and process no row twice."""

import threading
from collections import Counter as Multiset
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import weir
from runtime.core.attempt.failover_regions import numbering_senders, restart_scope
from runtime.core.job.key_groups import default_max_parallelism, key_group_owner
from runtime.core.job.restart_strategy import ROWS_NOT_REPEATED_CODE, FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.plan import CompiledJob
from runtime.dataflow.stream import RowFunction
from runtime.io.memory.exchange import MemoryExchange
from tests.jobs.conftest import Jobs
from tests.jobs.gated import Bomb, Gated
from tests.jobs.live import PATIENCE_S, Run, running
from tests.jobs.numbers import SCHEMA, committed
from tests.jobs.test_partial_restart import fail, pids
from tests.shared import Shared

AGAIN = FixedDelay(attempts=100, delay_ms=30)
SLOTS = 4
GROUPS = default_max_parallelism(SLOTS)
WORDS = pa.schema([("word", pa.int64()), ("value", pa.int64())])
SLOW = CoordinatorSettings(interval_ms=2_000, min_pause_ms=0)  #: so that rows are repeated


def numbered(total: int) -> Gated:
    return Gated(total=total, splits=8, numbers_rows=True)


def two_of_each(row: dict[str, int]) -> list[dict[str, int]]:
    return [{"word": row["value"] % 13, "value": n} for n in range(2)]


def word_counts(source: Gated, bomb: Bomb, output: Path, words: RowFunction = two_of_each) -> CompiledJob:
    """source -> words -> counts -> sink."""
    flow = weir.Dataflow("words")
    batches = flow.source("numbers", source).map_batches("bomb", bomb, repeatable=True)
    rows = batches.flat_map("words", words, WORDS, repeatable=True)
    counted = rows.key_by("word").aggregate("counts", {"n": weir.Count()})
    counted.sink("out", weir.ParquetSink(str(output)))
    return flow.compile(SLOTS)


def is_exact(source: Gated, output: Path) -> bool:
    """Whether the last count of each word is right, and no count was written twice: counts only rise."""
    counts = [(row["word"], row["n"]) for row in committed(output)]
    assert len(set(counts)) == len(counts), "a count was written twice"
    last = dict(sorted(counts))
    totals = Multiset(value % 13 for value in range(source.total))
    return last == {word: 2 * source.splits * total for word, total in totals.items()}


def read_after_a_checkpoint(run: Run, source: Gated, total: int) -> None:
    """Lets the job read rows that no checkpoint has before the next one is due."""
    run.checkpoints(1)
    read = run.operator("counts").get("records_in", 0)
    source.total = total
    run.wait_for(lambda: run.operator("counts").get("records_in", 0) > read)


def repeated_rows(run: Run) -> int:
    return int(run.operator("words").get("counters", {}).get("repeated_rows", 0))


def opened(source: Gated, token: int) -> int:
    return sum(opening.token == token for opening in source.opened)


@pytest.mark.parametrize("cause", ["kill", "exception"])
def test_counters_of_other_slots_keep_their_state(tmp_path: Path, jobs: Jobs, cause: str) -> None:
    """S4-44, S4-45: a slot is killed; all sources restart, and rows that a counter has counted are dropped."""
    source, bomb, output = numbered(200), Bomb(), tmp_path / "out"
    job = word_counts(source, bomb, output)
    scope = restart_scope(job.graph, job.failover_rules, {1})
    assert {str(subtask) for subtask in job.graph.subtasks if not scope.restarts(subtask)} == {
        f"{uid}/{slot}" for uid in ("counts", "out") for slot in (0, 2, 3)
    }
    with jobs.running(job, tmp_path / "state", settings=SLOW, restart=AGAIN) as run:
        run.wait_for(lambda: is_exact(source, output) and len(pids(run)) == SLOTS)
        before = pids(run)
        read_after_a_checkpoint(run, source, 600)
        if cause == "kill":
            fail(run, bomb, slot=1)
        else:
            bomb.arm()
        source.total = 700  # threads may have read all rows
        run.wait_for(lambda: max(opening.token for opening in source.opened) == 2)
        run.wait_for(lambda: repeated_rows(run) > 0 and len(pids(run)) == SLOTS)
        after = pids(run)
        source.total = 800
        run.wait_for(lambda: is_exact(source, output))
        run.end("drain")
    assert is_exact(source, output)
    assert opened(source, 2) == SLOTS, "all sources restart"
    (failure,) = run.records.details
    kept = failure["kept_slots"]
    assert failure["restarted_operators"] == ["bomb", "numbers", "words"]
    assert len(kept) == SLOTS - 1
    assert {slot: after[slot] for slot in kept} == {slot: before[slot] for slot in kept}


def test_a_second_failure_right_after_the_first_doubles_nothing(tmp_path: Path, jobs: Jobs) -> None:
    """S4-46: before the first checkpoint of the attempt that the first failure has begun."""
    source, bomb, output = numbered(200), Bomb(), tmp_path / "out"
    with jobs.running(word_counts(source, bomb, output), tmp_path / "state", settings=SLOW, restart=AGAIN) as run:
        run.wait_for(lambda: is_exact(source, output) and len(pids(run)) == SLOTS)
        for token, slot in ((2, 1), (3, 2), (4, 1)):
            source.total += 200
            fail(run, bomb, slot)
            source.total += 20
            run.wait_for(lambda: opened(source, token) == SLOTS)  # noqa: B023 (called at once)
            run.wait_for(lambda: len(pids(run)) == SLOTS)
        run.wait_for(lambda: is_exact(source, output))
        run.end("drain")
    assert is_exact(source, output)
    assert all(len(failure["kept_slots"]) == SLOTS - 1 for failure in run.records.details)


def test_restarts_in_part_that_help_nothing_end(tmp_path: Path) -> None:
    """S4-44: a lasting partition is blamed on one end. Without a checkpoint in between, all slots restart at last."""
    source, bomb, output = numbered(50), Bomb(), tmp_path / "out"
    job = word_counts(source, bomb, output)
    with running(job, tmp_path / "state", settings=CoordinatorSettings(interval_ms=None), restart=AGAIN) as run:
        run.wait_for(lambda: run.operator("counts").get("records_in", 0) > 0)
        for token in range(2, 7):
            bomb.arm()
            source.total += 20
            run.wait_for(lambda token=token: opened(source, token) > 0)  # type: ignore[misc]
            run.wait_for(lambda: run.operator("counts").get("records_in", 0) > 0)
        run.wait_for(lambda: run.operator("numbers").get("records_out") == source.splits * source.total)
        run.end("drain")
    assert is_exact(source, output)
    assert ["kept_slots" in failure for failure in run.records.details] == [True, True, True, False, True]


def test_a_channel_that_closes_slowly_does_not_hold_the_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kept slot closes its channels to a peer that hangs; its subtasks run on meanwhile."""
    source, output = numbered(50), tmp_path / "out"
    close, is_released, failed = MemoryExchange.close, threading.Event(), list[int]()

    def fail_once(batch: pa.RecordBatch) -> pa.RecordBatch:
        if source.total > 50 and not failed:
            failed.append(threading.get_ident())
            raise RuntimeError("as the test wants it")
        return batch

    def close_slowly(exchange: MemoryExchange) -> None:
        if failed and exchange._token == 1 and threading.get_ident() != failed[0]:
            assert is_released.wait(PATIENCE_S)
        close(exchange)

    monkeypatch.setattr(MemoryExchange, "close", close_slowly)
    flow = weir.Dataflow("slow-close")
    rows = flow.source("numbers", source).map_batches("step", fail_once, repeatable=True)
    rows.key_by("key").aggregate("counts", {"n": weir.Count()}).sink("out", weir.ParquetSink(str(output)))
    try:
        with running(flow.compile(SLOTS), tmp_path / "state", settings=SLOW, restart=AGAIN) as run:
            run.wait_for(lambda: run.manifests)
            source.total = 100
            run.wait_for(lambda: run.manifests[-1].token == 2)
            is_released.set()
            run.end("drain")
    finally:
        is_released.set()
    (failure,) = run.records.details
    assert len(failure["kept_slots"]) == SLOTS - 1


class Changing(Shared):
    """A row function that emits fewer rows from some moment on, or other words in equal numbers to each receiver."""

    def __init__(self) -> None:
        self.rows, self.words = 2, list(range(13))

    def __call__(self, row: dict[str, int]) -> list[dict[str, int]]:
        return [{"word": self.words[row["value"] % 13], "value": n} for n in range(self.rows)]


def other_words() -> list[int]:
    """For each word another one that goes to the same subtask, as far as there is one."""
    words = pa.record_batch({"word": pa.array(range(13), pa.int64())})
    groups = weir.spi.key_groups(words, ["word"], GROUPS)
    owners = [key_group_owner(int(group), GROUPS, SLOTS) for group in groups]
    same = [[word for word in range(13) if owners[word] == owner] for owner in owners]
    return [words[(words.index(word) + 1) % len(words)] for word, words in enumerate(same)]


@pytest.mark.parametrize("change", [{"rows": 1}, {"words": other_words()}], ids=["fewer", "other"])
def test_a_step_that_does_not_repeat_itself_restarts_all(tmp_path: Path, change: dict[str, Any]) -> None:
    """S4-45: other rows than before a restart are noticed before a checkpoint can contain them."""
    source, bomb, output, words = numbered(200), Bomb(), tmp_path / "out", Changing()
    job = word_counts(source, bomb, output, words)
    with running(job, tmp_path / "state", settings=SLOW, restart=AGAIN) as run:
        run.wait_for(lambda: is_exact(source, output))
        read_after_a_checkpoint(run, source, 600)
        vars(words).update(change)
        bomb.arm()
        source.total = 700
        run.wait_for(lambda: len(run.records.details) == 2 and run.manifests[-1].token == 3)
        bomb.arm()
        source.total = 800
        run.wait_for(lambda: len(run.records.details) == 3 and run.manifests[-1].token == 4)
        run.end("drain")
    first, second, third = run.records.details
    assert len(first["kept_slots"]) == SLOTS - 1
    assert second["code"] == ROWS_NOT_REPEATED_CODE
    assert "after a restart" in second["message"]
    assert "kept_slots" not in second
    assert "kept_slots" not in third, "the step is not trusted again"


def test_a_function_of_the_author_is_not_taken_as_repeatable(tmp_path: Path) -> None:
    """A salt by a counter would send repeated rows to other receivers, in equal numbers: some twice, some never."""
    flow = weir.Dataflow("salted")
    rows = flow.source("numbers", numbered(10)).map("salt", dict, SCHEMA).key_by("key")
    rows.aggregate("counts", {"n": weir.Count()}).sink("out", weir.ParquetSink(str(tmp_path / "out")))
    job = flow.compile(SLOTS)
    assert not restart_scope(job.graph, job.failover_rules, {1}).kept_slots
    assert not numbering_senders(job.graph, job.failover_rules), "rows that no survivor gets have no numbers"
