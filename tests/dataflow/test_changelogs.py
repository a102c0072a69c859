"""Steps behind a changelog: rows with op `update_before` and `delete` take back earlier rows, and are no new rows."""

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import weir
from runtime.connectors.sinks.collect import CollectSink
from runtime.launch.local import run_local
from tests.jobs.numbers import Numbers, expected_counts

COUNT = {"rows": weir.Count()}
KEY = pa.schema([("key", pa.int64())])
WITH_OP = pa.schema([("key", pa.int64()), ("op", pa.string())])
MINUTE = timedelta(minutes=1)
OP = pc.field("op")


class Passes(weir.ProcessFunction):
    def process(self, row: Any, context: Any, out: Any) -> None:
        out.emit(row)


class KeyedPasses(weir.KeyedProcessFunction):
    def process(self, row: Any, context: Any, out: Any) -> None:
        out.emit(row)


class PassesBatches(weir.spi.Operator):
    def process(self, input: int, batch: pa.RecordBatch, out: Any) -> None:
        out.emit(batch)


class PassesRules(weir.BroadcastProcessFunction):
    def process(self, row: Any, context: Any, out: Any) -> None:
        out.emit(row)

    def process_broadcast(self, row: Any, context: Any, out: Any) -> None: ...


class PassesBoth(weir.CoProcessFunction):
    def process1(self, row: Any, context: Any, out: Any) -> None:
        out.emit(row)

    def process2(self, row: Any, context: Any, out: Any) -> None: ...


def numbers(flow: weir.Dataflow) -> weir.Stream:
    return flow.source("numbers", Numbers(total=20))


def changes(flow: weir.Dataflow) -> weir.Stream:
    """How many rows each key has."""
    return numbers(flow).key_by("key").aggregate("changes", {"n": weir.Count()}, changelog=True)


def table_changes(flow: weir.Dataflow) -> weir.Stream:
    return flow.source("changes", weir.PostgresChanges("postgresql://weir@db/shop", "orders", "orders", "orders"))


Step = Callable[[weir.Stream], Any]

REFUSED: dict[str, Step] = {
    "aggregate": lambda s: s.key_by("key").aggregate("step", COUNT),
    "deduplicate": lambda s: s.key_by("key").deduplicate("step", MINUTE, "n"),
    "latest": lambda s: s.key_by("key").latest("step", "n"),
    "interval join": lambda s: (
        s.key_by("key")
        .interval_join(numbers(s.flow).key_by("key"))
        .between("step", MINUTE, MINUTE, time=("n", "value"))
    ),
    "window join": lambda s: (
        numbers(s.flow).key_by("key").join(s.key_by("key")).window("step", MINUTE, time=("value", "n"))
    ),
    "build side": lambda s: numbers(s.flow).join_broadcast("step", s, on=["key"], take=["n"]),
    "select": lambda s: s.select("step", "key", "n"),
    "select by chance": lambda s: s.select("step", "key", text=pc.if_else(pc.field("n") > 1, "op", "")),
    "op replaced": lambda s: s.with_columns("step", op=pc.scalar("insert")),
    "back-edge": lambda s: numbers(s.flow).iterate("step").close_with(s),
}

SIDE = weir.OutputTag("side", WITH_OP)
FORWARDING: dict[str, Step] = {
    "filter": lambda s: s.filter("step", pc.field("n") > 1),
    "select": lambda s: s.select("step", "key", "op", twice=pc.field("n") * 2),
    "with_columns": lambda s: s.with_columns("step", twice=pc.field("n") * 2),
    "map_batches": lambda s: s.map_batches("step", lambda batch: batch),
    "map": lambda s: s.map("step", lambda row: row, WITH_OP),
    "flat_map": lambda s: s.flat_map("step", lambda row: [row], WITH_OP),
    "process": lambda s: s.process("step", Passes, WITH_OP),
    "keyed process": lambda s: s.key_by("key").process("step", KeyedPasses, WITH_OP),
    "transform": lambda s: s.transform("step", PassesBatches),
    "keyed transform": lambda s: s.key_by("key").transform("step", PassesBatches, WITH_OP),
    "batches": lambda s: s.key_by("key").batches("step", lambda batch: batch, max_rows=10),
    "probe side": lambda s: s.join_broadcast("step", numbers(s.flow), on=["key"], take=["value"]),
    "union": lambda s: s.union("step", s.filter("more", pc.field("n") > 1)),
    "iterate": lambda s: s.iterate("step"),
    "write_through": lambda s: s.write_through("step", CollectSink()),
    "partition_custom": lambda s: s.partition_custom(lambda rows, subtasks: [0] * len(rows), "key").process(
        "step", Passes, WITH_OP
    ),
    "side output": lambda s: s.process("step", Passes, KEY, side_outputs=[SIDE]).side_output(SIDE),
    "keyed side output": lambda s: (
        s.key_by("key").process("step", KeyedPasses, KEY, side_outputs=[SIDE]).side_output(SIDE)
    ),
    "connect_broadcast": lambda s: s.connect_broadcast("step", numbers(s.flow), PassesRules, WITH_OP),
    "connect": lambda s: numbers(s.flow).connect(s).process("step", PassesBoth, WITH_OP),
}

READING: dict[str, Step] = {
    "filter": lambda s: s.filter("step", OP != "update_before"),
    "select": lambda s: s.select("step", "key", "op", sign=pc.if_else(OP == "update_before", -1, 1)),
    "with_columns": lambda s: s.with_columns("step", sign=pc.if_else(OP == "update_before", -1, 1)),
    "map": lambda s: s.map("step", lambda row: row, KEY),
    "process": lambda s: s.process("step", Passes, KEY),
    "rules": lambda s: numbers(s.flow).connect_broadcast("step", s, PassesRules, WITH_OP),
}


@pytest.mark.parametrize("factory", [changes, table_changes])
@pytest.mark.parametrize("step", REFUSED.values(), ids=REFUSED)
def test_a_step_that_would_count_retractions_as_rows_is_refused(step: Step, factory: Any) -> None:
    with pytest.raises(weir.JobRejected, match=r"'changes' is a changelog: .*'op'") as error:
        step(factory(weir.Dataflow("counts")))
    assert (error.value.code, error.value.field) == ("changelog-input", "step")


#: By step, why it cannot take rows back and what to do instead.
ADVICE: dict[str, str] = {
    "deduplicate": r"a later one would have to pass.* Drop duplicates before the aggregate",
    "latest": r"the row before it would have to come back.* Max of the time",
    "interval join": r"pairs of a row that is taken back.* Join the rows before the aggregate",
    "window join": r"pairs of a row that is taken back.* Join the rows before the aggregate",
}


@pytest.mark.parametrize("name", ADVICE)
def test_a_refusal_gives_the_reason_and_another_way(name: str) -> None:
    """Not behind a table, whose rows no aggregate can subtract."""
    with pytest.raises(weir.JobRejected, match=ADVICE[name]):
        REFUSED[name](changes(weir.Dataflow("counts")))
    with pytest.raises(weir.JobRejected, match=r"as new rows\. Read the column 'op'"):
        REFUSED[name](table_changes(weir.Dataflow("counts")))


@pytest.mark.parametrize("step", FORWARDING.values(), ids=FORWARDING)
def test_rows_stay_a_changelog_behind_steps_that_pass_op_on(step: Step) -> None:
    with pytest.raises(weir.JobRejected, match="is a changelog"):
        step(changes(weir.Dataflow("counts"))).key_by("key").aggregate("counts", COUNT)


@pytest.mark.parametrize("step", FORWARDING.values(), ids=FORWARDING)
def test_an_aggregate_subtracts_behind_steps_that_pass_op_on(step: Step) -> None:
    """Its own output is a changelog again."""
    counted = step(changes(weir.Dataflow("counts"))).key_by("key").aggregate("counts", COUNT, changelog=True)
    again = counted.key_by("rows").aggregate("again", {"keys": weir.Count()}, changelog=True)
    with pytest.raises(weir.JobRejected, match="'again' is a changelog"):
        again.key_by("rows").latest("latest", "rows")


@pytest.mark.parametrize(
    "step",
    [
        lambda s: s,
        lambda s: s.filter("rest", pc.field("id") > 1),
        lambda s: s.union("both", changes(s.flow).map_batches("ids", lambda batch: batch)),
        lambda s: s.process("side", Passes, KEY, side_outputs=[SIDE]).side_output(SIDE),
    ],
    ids=["source", "filter", "union", "side output"],
)
def test_aggregates_and_windows_refuse_a_changelog_whose_deletions_may_lack_values(step: Step) -> None:
    """Without REPLICA IDENTITY FULL a deletion has its key only, and an update comes without the row before it."""
    source = weir.PostgresChanges("postgresql://weir@db/shop", "orders", "orders", "orders")
    stream = step(weir.Dataflow("counts").source("orders", source))
    keyed = stream.key_by("key")
    consumers: list[Callable[[], weir.Stream]] = [
        lambda: keyed.aggregate("step", COUNT, changelog=True),
        lambda: keyed.window("step", MINUTE, "key", COUNT),
        lambda: keyed.window("step", MINUTE, "key", COUNT, slide=MINUTE / 2),
        lambda: keyed.session_window("step", MINUTE, "key", COUNT),
    ]
    for consumer in consumers:
        with pytest.raises(weir.JobRejected, match=r"a changelog: its rows with op 'delete'.* keyed function") as error:
            consumer()
        assert (error.value.code, error.value.field) == ("changelog-input", "step")


def test_an_aggregate_without_a_changelog_of_its_own_cannot_show_deletions() -> None:
    with pytest.raises(weir.JobRejected, match="add changelog=True") as error:
        changes(weir.Dataflow("counts")).key_by("key").aggregate("step", COUNT)
    assert (error.value.code, error.value.field) == ("changelog-input", "step")


LATE = weir.OutputTag("late", pa.schema([("key", pa.int64()), ("n", pa.int64()), ("op", pa.string())]))


@pytest.mark.parametrize(
    "windowed",
    [
        lambda s: s.key_by("key").window("windows", MINUTE, "n", COUNT, late_to=LATE),
        lambda s: s.key_by("key").window("windows", MINUTE, "n", COUNT, slide=MINUTE / 2, late_to=LATE),
        lambda s: s.key_by("key").session_window("windows", MINUTE, "n", COUNT, late_to=LATE),
    ],
    ids=["tumbling", "sliding", "session"],
)
def test_the_output_of_a_window_is_no_changelog_and_its_late_rows_are(windowed: Step) -> None:
    windows = windowed(changes(weir.Dataflow("counts")))
    windows.key_by("key").latest("latest", "window_start")
    with pytest.raises(weir.JobRejected, match="is a changelog"):
        windows.side_output(LATE).key_by("key").latest("late_latest", "n")


def test_an_aggregate_of_a_changelog_may_not_have_the_name_of_its_column() -> None:
    with pytest.raises(weir.JobRejected, match="must differ"):
        changes(weir.Dataflow("counts")).key_by("key").aggregate("step", {"op": weir.Count()}, changelog=True)


@pytest.mark.parametrize("step", READING.values(), ids=READING)
def test_a_step_that_reads_op_ends_the_changelog(step: Step) -> None:
    step(changes(weir.Dataflow("counts"))).key_by("key").aggregate("counts", COUNT)


def test_counts_of_counts_follow_the_retractions(tmp_path: Path) -> None:
    """How many keys have each count: by an aggregate that subtracts, and by the sum of the signs of all changes."""
    flow, sink, changed = weir.Dataflow("counts"), CollectSink(), CollectSink()
    sign = pc.if_else(pc.is_in(OP, pa.array(["update_before", "delete"])), -1, 1)
    counted = changes(flow)
    counted.key_by("n").aggregate("keys_of", {"keys": weir.Count()}, changelog=True).sink("changed", changed)
    signed = counted.select("signed", "n", sign=sign)
    signed.key_by("n").aggregate("keys", {"keys": weir.Sum("sign")}).sink("out", sink)
    run_local(flow, parallelism=2, storage=str(tmp_path))
    newest = {row["n"]: row["keys"] for row in sink.rows()}
    expected = Counter(n for n, _ in expected_counts(Numbers(total=20)).values())
    assert {n: keys for n, keys in newest.items() if keys} == expected
    left: Counter[tuple[int, int]] = Counter()
    for row in changed.rows():
        left[row["n"], row["keys"]] += -1 if row["op"] in ("update_before", "delete") else 1
    assert +left == Counter(dict.fromkeys(expected.items(), 1))
    assert min(left.values()) == 0
