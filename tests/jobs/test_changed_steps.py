"""Jobs whose steps differ from their checkpoint: the report of the restore and the run refuse alike."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import weir
from runtime.core.job.ids import Token
from runtime.core.restore.mapping import OperatorMatch, RestoreTarget, mapping_report
from runtime.io.memory.run_store import MemoryRunStore
from tests.jobs.gated import Gated
from tests.jobs.live import running

ROWS = pa.schema(
    [("key", pa.int64()), ("id", pa.int64()), ("ts", pa.int64()), ("ts2", pa.int64()), ("text", pa.string())]
)
COUNTS = pa.schema([("n", pa.int64())])
HOUR = timedelta(hours=1)


class CountPerKey(weir.KeyedProcessFunction):
    def open(self, context: Any) -> None:
        self._count = context.value_state("n")

    def process(self, row: Any, context: Any, out: Any) -> None:
        self._count.update(self._count.get(0) + 1)
        out.emit({"n": self._count.get()})


class CountPairs(weir.KeyedCoProcessFunction):
    def open(self, context: Any) -> None:
        self._count = context.value_state("n")

    def process1(self, row: Any, context: Any, out: Any) -> None:
        self._count.update(self._count.get(0) + 1)
        out.emit({"n": self._count.get()})

    def process2(self, row: Any, context: Any, out: Any) -> None: ...


class Spread(weir.Sum):
    """An aggregate of an author."""


Step = Callable[[weir.Stream], weir.Stream]


def counted(*keys: str) -> Step:
    return lambda s: s.key_by(*keys).process("step", CountPerKey, COUNTS)


def connected(first: str, second: str) -> Step:
    return lambda s: (
        s.key_by(first)
        .connect(s.filter("other", pc.field("id") >= 0).key_by(second))
        .process("step", CountPairs, COUNTS)
    )


def summed(**aggregates: Any) -> Step:
    return lambda s: s.key_by("key").aggregate("step", aggregates)


def summed_changes(stream: weir.Stream) -> weir.Stream:
    """Sums of a changelog, which may take rows back."""
    first = stream.key_by("key", "id").aggregate("first", {"n": weir.Count()}, changelog=True)
    return first.key_by("key").aggregate("step", SUM_ID, changelog=True)


def windows_of_changes(slide: timedelta | None) -> Step:
    """Sums of a changelog by window; None: by session."""

    def step(stream: weir.Stream) -> weir.Stream:
        first = stream.key_by("key", "id", "ts").aggregate("first", {"n": weir.Count()}, changelog=True)
        if slide is None:
            return first.key_by("key").session_window("step", HOUR, "ts", SUM_ID)
        return first.key_by("key").window("step", HOUR, "ts", SUM_ID, slide=slide)

    return step


def windowed(**aggregates: Any) -> Step:
    return lambda s: s.key_by("key").window("step", HOUR, "ts", aggregates)


def sliding(**aggregates: Any) -> Step:
    return lambda s: s.key_by("key").window("step", HOUR, "ts", aggregates, slide=HOUR / 2)


def sessions(**aggregates: Any) -> Step:
    return lambda s: s.key_by("key").session_window("step", HOUR, "ts", aggregates)


def newest(time: str) -> Step:
    return lambda s: s.key_by("key").latest("step", time)


def unique(time: str) -> Step:
    return lambda s: s.key_by("key").deduplicate("step", HOUR, time)


def at(time: str) -> Step:
    return lambda s: s.key_by("key").window("step", HOUR, time, SUM_ID)


def session_at(time: str) -> Step:
    return lambda s: s.key_by("key").session_window("step", HOUR, time, SUM_ID)


def paired(second: str) -> Step:
    return lambda s: (
        s.key_by("key")
        .interval_join(s.filter("other", pc.field("id") >= 0).key_by("key"))
        .between("step", -HOUR, HOUR, time=("ts", second), suffixes=("", "_other"))
    )


def joined(second: str) -> Step:
    return lambda s: (
        s.key_by("key")
        .join(s.filter("other", pc.field("id") >= 0).key_by("key"))
        .window("step", HOUR, time=("ts", second), suffixes=("", "_other"))
    )


SUM_ID = {"total": weir.Sum("id")}
SUM_TS = {"total": weir.Sum("ts")}
KEYS, AGGREGATES, TIMES = "keys-changed", "aggregates-changed", "times-changed"
OTHER_TIME = "its times are ts in the checkpoint and ts2 in the job"
OTHER_TIMES = "its times are ts, ts in the checkpoint and ts, ts2 in the job"
OTHER_SUM = "'total' is Sum(id) in the checkpoint and Sum(ts)"

CHANGES: dict[str, tuple[Step, Step, str, str]] = {
    "another key": (counted("key"), counted("id"), KEYS, "its keys are key in the checkpoint and id in the job"),
    "another type": (counted("key"), counted("text"), KEYS, "its keys are key in the checkpoint and text in the job"),
    "one more key": (counted("key"), counted("key", "id"), KEYS, "key in the checkpoint and key, id in the job"),
    "other order": (counted("key", "id"), counted("id", "key"), KEYS, "key, id in the checkpoint and id, key in the"),
    "second input": (connected("key", "key"), connected("key", "id"), KEYS, "key; key in the checkpoint and key; id"),
    "another column": (summed(**SUM_ID), summed(**SUM_TS), AGGREGATES, OTHER_SUM),
    "another function": (
        summed(x=weir.Min("id")), summed(x=weir.Max("id")), AGGREGATES, "'x' is Min(id) in the checkpoint and Max(id)",
    ),
    "of an author": (summed(**SUM_ID), summed(total=Spread("id")), AGGREGATES, "Sum(id) in the checkpoint and Spread"),
    "added": (summed(**SUM_ID), summed(**SUM_ID, n=weir.Count()), AGGREGATES, "'n', Count(), is not in the checkpoint"),
    "removed": (summed(n=weir.Count(), **SUM_ID), summed(**SUM_ID), AGGREGATES, "'n', Count(), is not in the job"),
    "reordered": (
        summed(n=weir.Count(), **SUM_ID), summed(**SUM_ID, n=weir.Count()), AGGREGATES,
        "their order is n, total in the checkpoint and total, n in the job",
    ),
    "now of a changelog": (summed(**SUM_ID), summed_changes, AGGREGATES, "in the checkpoint and CountedSum(id)"),
    "window": (windowed(**SUM_ID), windowed(**SUM_TS), AGGREGATES, OTHER_SUM),
    "window of a changelog": (
        windowed(**SUM_ID), windows_of_changes(HOUR), AGGREGATES, "in the checkpoint and CountedSum(id)"
    ),
    "sliding": (sliding(**SUM_ID), sliding(**SUM_ID, n=weir.Count()), AGGREGATES, "'n', Count(), is not in the"),
    "sessions": (sessions(**SUM_ID), sessions(**SUM_TS), AGGREGATES, OTHER_SUM),
    "time of the latest row": (newest("ts"), newest("ts2"), TIMES, OTHER_TIME),
    "time of duplicates": (unique("ts"), unique("ts2"), TIMES, OTHER_TIME),
    "time of windows": (at("ts"), at("ts2"), TIMES, OTHER_TIME),
    "time of sessions": (session_at("ts"), session_at("ts2"), TIMES, OTHER_TIME),
    "time of an interval join": (paired("ts"), paired("ts2"), TIMES, OTHER_TIMES),
    "time of a window join": (joined("ts"), joined("ts2"), TIMES, OTHER_TIMES),
}  # fmt: skip


def job(source: Gated, step: Step, out: Any) -> Any:
    flow = weir.Dataflow("changed", max_parallelism=16)
    rows = flow.source("numbers", source).map("rows", _row, ROWS)
    step(rows).sink("out", out)
    return flow.compile(1)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    at = row["value"] * 1_000
    return {"key": row["key"], "id": row["value"], "ts": at, "ts2": at - 60_000, "text": str(row["key"])}


def stopped(tmp_path: Path, step: Step) -> tuple[str, Any]:
    """A savepoint, with its manifest, of a job with rows in `step`."""
    source = Gated(total=20)
    with running(job(source, step, weir.CollectSink()), tmp_path) as run:
        run.wait_for(lambda: run.operator("step").get("records_in", 0) > 0)
        run.checkpoints(2)
        return run.end("stop"), run.manifests[-1]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_step_is_refused_in_the_report_and_before_any_slot_starts(tmp_path: Path, change: str) -> None:
    before, after, code, text = CHANGES[change]
    savepoint, manifest = stopped(tmp_path, before)
    new_job = job(Gated(total=40), after, weir.CollectSink())
    (mapping,) = [each for each in mapping_report(manifest, RestoreTarget.of(new_job.graph), "changed").operators
                if each.uid == "step"]  # fmt: skip
    assert mapping.fate is OperatorMatch.INCOMPATIBLE
    assert mapping.problem is not None
    assert (mapping.problem.code, mapping.problem.waivable) == (code, False)
    assert text in mapping.reason
    records = MemoryRunStore(token=Token(2), restore_from=savepoint)
    with running(new_job, tmp_path, records) as run:
        run.join()
    assert records.failure is not None
    assert records.failure["code"] == code
    assert f"step: {mapping.reason}" in records.failure["message"]
    assert records.live == {}, "no slot was started"


@pytest.mark.parametrize(
    "step",
    [
        counted("key"),
        connected("key", "key"),
        summed(**SUM_ID),
        summed_changes,
        sliding(**SUM_ID),
        windows_of_changes(HOUR),
        windows_of_changes(HOUR / 2),
        windows_of_changes(None),
    ],
)
def test_an_unchanged_step_goes_on(tmp_path: Path, step: Step) -> None:
    savepoint, manifest = stopped(tmp_path, step)
    new_job = job(Gated(total=40), step, weir.CollectSink())
    assert not mapping_report(manifest, RestoreTarget.of(new_job.graph), "changed").all_problems
    records = MemoryRunStore(token=Token(2), restore_from=savepoint)
    with running(new_job, tmp_path, records) as run:
        run.checkpoints(2)
        run.end("cancel")
