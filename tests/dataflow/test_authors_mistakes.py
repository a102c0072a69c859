"""Mistakes of job authors: each is one error that names the operator and the argument, before anything starts."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import weir
from runtime.core.job.graph import JobGraph
from tests.jobs.live import running
from tests.jobs.numbers import Numbers

SCHEMA = pa.schema([("key", pa.int64()), ("n", pa.int64())])
MS = timedelta(milliseconds=1)
COUNT = {"n": weir.Count()}


class Yielding(weir.KeyedProcessFunction):
    def process(self, row: Any, context: Any, out: Any) -> Any:
        yield row


class YieldingTimer(weir.KeyedProcessFunction):
    def process(self, row: Any, context: Any, out: Any) -> None: ...

    def on_timer(self, timestamp_ms: int, context: Any, out: Any) -> Any:
        yield {"n": timestamp_ms}


class Asynchronous(weir.ProcessFunction):
    async def process(self, row: Any, context: Any, out: Any) -> None:  # type: ignore[override]
        out.emit(row)


class Lacking(weir.KeyedProcessFunction):
    """It has no `process`."""


class Plain(weir.ProcessFunction):
    def process(self, row: Any, context: Any, out: Any) -> None: ...


class Keyed(weir.KeyedProcessFunction):
    def process(self, row: Any, context: Any, out: Any) -> None: ...


async def asynchronous(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [row]


class Service:
    async def __call__(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        return [row]


def rows_of_batch(batch: pa.RecordBatch) -> Any:
    yield batch


def synchronous(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [row]


def stream() -> weir.Stream:
    return weir.Dataflow("mistakes").source("numbers", Numbers(total=1))


def keyed() -> weir.KeyedStream:
    return stream().key_by("key")


def window(size: Any, slide: Any = None, time: Any = "at", aggregates: Any = COUNT) -> Callable[[], Any]:
    return lambda: keyed().window("step", size, time, aggregates, slide=slide)


def sessions(gap: Any) -> Callable[[], Any]:
    return lambda: keyed().session_window("step", gap, "at", COUNT)


def files(path: str) -> weir.DirectorySource:
    return weir.DirectorySource(path, weir.JsonLinesFormat(SCHEMA))


TYPED = pa.schema([("key", pa.int64()), ("at", pa.timestamp("ms")), ("name", pa.string())])


class Paired(weir.KeyedCoProcessFunction):
    def process1(self, row: Any, context: Any, out: Any) -> None: ...

    def process2(self, row: Any, context: Any, out: Any) -> None: ...


class Ruled(weir.KeyedBroadcastProcessFunction):
    def process(self, row: Any, context: Any, out: Any) -> None: ...

    def process_broadcast(self, row: Any, context: Any, out: Any) -> None: ...


#: By method, the step with a column of event times.
TIMED_STEPS: dict[str, Callable[[weir.Stream, str], weir.Stream]] = {
    "window": lambda rows, time: rows.key_by("key").window("step", 5 * MS, time, COUNT),
    "session_window": lambda rows, time: rows.key_by("key").session_window("step", 5 * MS, time, COUNT),
    "deduplicate": lambda rows, time: rows.key_by("key").deduplicate("step", 5 * MS, time),
    "latest": lambda rows, time: rows.key_by("key").latest("step", time),
    "process": lambda rows, time: rows.key_by("key").process("step", Keyed, SCHEMA, time=time),
    "connect_broadcast": lambda rows, time: rows.key_by("key").connect_broadcast(
        "step", rows, Ruled, SCHEMA, time=time
    ),
    "connect": lambda rows, time: (
        rows.key_by("key").connect(rows.key_by("key")).process("step", Paired, SCHEMA, time=("at", time))
    ),
    "interval_join": lambda rows, time: (
        rows.key_by("key")
        .interval_join(rows.key_by("key"))
        .between("step", 0 * MS, MS, time=("at", time), suffixes=("", "_2"))
    ),
    "join": lambda rows, time: (
        rows.key_by("key").join(rows.key_by("key")).window("step", 5 * MS, time=(time, "at"), suffixes=("", "_2"))
    ),
}


@pytest.mark.parametrize("method", TIMED_STEPS)
def test_a_column_of_event_times_that_is_unknown_or_no_time_is_refused(method: str) -> None:
    add = TIMED_STEPS[method]
    for column, code, detail in (
        ("tiem", "unknown-column", "step: tiem: there is no such column; there are key, at, name"),
        ("name", "bad-time-column", "step: name: event times are a timestamp, a date or .*, not string"),
    ):
        with pytest.raises(weir.JobRejected, match=detail) as error:
            add(stream().map("rows", dict, TYPED), column)
        assert (error.value.code, error.value.field) == (code, "step")
    runs = pa.schema([("key", pa.int64()), ("at", pa.run_end_encoded(pa.int32(), pa.timestamp("ms")))])
    for schema in (TYPED, runs):  # channels carry no run ends
        assert add(stream().map("rows", dict, schema), "at").uid == "step"
    assert add(stream(), "tiem").uid == "step", "the columns are not known before the first batch"


@pytest.mark.parametrize(
    ("arguments", "code", "detail"),
    [
        ({"on": ["nmae"], "take": ["title"]}, "unknown-column", "step: nmae: the build side has only name, key, title"),
        ({"on": ["name"], "take": ["titel"]}, "unknown-column", "step: titel: the build side has only"),
        ({"on": ["title"], "take": ["key"]}, "unknown-column", "step: title: the probe side has only key, at, name"),
        ({"on": ["name"], "take": ["key"]}, "duplicate-column", "step: key: both sides of the join have this column"),
        ({"on": ["key"], "take": ["title"]}, "bad-join", "step: key: the probe side has int64, the build side string"),
    ],
)
def test_columns_of_a_broadcast_join_that_do_not_fit_are_refused(
    arguments: dict[str, Any], code: str, detail: str
) -> None:
    titles = pa.schema([("name", pa.string()), ("key", pa.string()), ("title", pa.string())])
    rows = stream()
    with pytest.raises(weir.JobRejected, match=detail) as error:
        rows.map("rows", dict, TYPED).join_broadcast("step", rows.map("titles", dict, titles), **arguments)
    assert (error.value.code, error.value.field) == (code, "step")
    rows.join_broadcast("unknown", rows, **arguments)  # the columns are not known before the first batch


def test_a_join_of_known_columns_that_fit_passes() -> None:
    titles = pa.schema([("name", pa.dictionary(pa.int32(), pa.string_view())), ("title", pa.string())])
    rows = stream()
    build = rows.map("titles", dict, titles)
    assert rows.map("rows", dict, TYPED).join_broadcast("step", build, on=["name"], take=["title"]).uid == "step"


def directory(**arguments: Any) -> Callable[[], Any]:
    settings = {"event_time": "n", "max_disorder_ms": 5, **arguments}
    source = weir.DirectorySource("/in", weir.JsonLinesFormat(SCHEMA), **settings)
    return lambda: weir.Dataflow("mistakes").source("step", source)


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "process yields": (lambda: keyed().process("step", Yielding, SCHEMA), "process.*yield.*out.emit"),
    "on_timer yields": (lambda: keyed().process("step", YieldingTimer, SCHEMA), "on_timer.*yield.*out.emit"),
    "process is async": (lambda: stream().process("step", Asynchronous, SCHEMA), "process.*async.*async_map"),
    "no process": (lambda: keyed().process("step", Lacking, SCHEMA), "Lacking lacks process"),
    "an instance": (lambda: keyed().process("step", Keyed(), SCHEMA), "class.*not an instance"),  # type: ignore[arg-type]
    "not keyed": (lambda: keyed().process("step", Plain, SCHEMA), "KeyedProcessFunction"),  # type: ignore[arg-type]
    "keyed": (lambda: stream().process("step", Keyed, SCHEMA), "ProcessFunction.*key_by"),  # type: ignore[arg-type]
    "no broadcast": (
        lambda: keyed().connect_broadcast("step", stream(), Keyed, SCHEMA),  # type: ignore[arg-type]
        "KeyedBroadcastProcessFunction",
    ),
    "schema": (lambda: keyed().process("step", Keyed, {"n": "int"}), "schema.*pyarrow.Schema.*dict"),
    "schema of flat_map": (lambda: stream().flat_map("step", synchronous, None), "schema.*NoneType"),
    "columns twice": (
        lambda: stream().flat_map("step", synchronous, pa.schema([("n", pa.int64()), ("n", pa.int64())])),
        "schema.*'n' twice",
    ),
    "async flat_map": (lambda: stream().flat_map("step", asynchronous, SCHEMA), "async_map"),  # type: ignore[arg-type]
    "async flat_map of an object": (lambda: stream().flat_map("step", Service(), SCHEMA), "async_map"),  # type: ignore[arg-type]
    "async_map yields": (lambda: stream().async_map("step", rows_of_batch, SCHEMA), "yield"),
    "map_batches yields": (lambda: stream().map_batches("step", rows_of_batch), "yield"),
    "no function": (lambda: stream().map_batches("step", 7), "function.*callable.*int"),  # type: ignore[arg-type]
    "1.5 ms": (window(1.5 * MS), "size.*whole number of milliseconds"),
    "slide of 1.5 ms": (window(3 * MS, 1.5 * MS), "slide.*whole number of milliseconds"),
    "300 years": (window(timedelta(days=365 * 300)), "size.*at most 36525 days"),
    "no time": (window(0 * MS), "size.*at least 1 ms"),
    "less than no time": (window(-5 * MS), "size.*at least 1 ms"),
    "no gap": (sessions(0 * MS), "gap.*at least 1 ms"),
    "gap of a number": (sessions(5), "gap.*timedelta.*int"),
    "slide of nothing": (window(5 * MS, 0 * MS), "slide.*at least 1 ms"),
    "slide too long": (window(5 * MS, 6 * MS), "slide of 6 ms is longer"),
    "a number": (window(5), "size.*timedelta.*int"),
    "time column": (window(5 * MS, time=None), "time.*name of a column.*NoneType"),
    "aggregates": (window(5 * MS, aggregates={"n": "count"}), "aggregates.*'n' is 'count'"),
    "no aggregates": (window(5 * MS, aggregates=[weir.Count()]), "aggregates.*by output column.*list"),
    "aggregate named as the key": (window(5 * MS, aggregates={"key": weir.Count()}), "output columns must differ"),
    "running": (lambda: keyed().aggregate("step", {"n": weir.Count}), "aggregates.*'n'.*Count"),  # type: ignore[dict-item]
    "keys in a list": (lambda: stream().key_by(["key"]), "key_by.*name of a column.*list"),  # type: ignore[arg-type]
    "on as text": (lambda: stream().join_broadcast("step", stream(), on="key", take=["n"]), "on.*list.*'key'"),
    "take as text": (lambda: stream().join_broadcast("step", stream(), on=["key"], take="n"), "take.*list.*'n'"),
    "how": (lambda: stream().join_broadcast("step", stream(), on=["key"], take=["n"], how="outer"), "how.*outer"),
    "no parallelism": (lambda: stream().map_batches("step", len, parallelism=0), "parallelism.*at least 1.*0"),
    "half a slot": (lambda: stream().map_batches("step", len, parallelism=1.5), "parallelism.*1.5"),  # type: ignore[arg-type]
    "an object store": (
        lambda: stream().sink("step", weir.ParquetSink("gs://bucket/out")),
        "path.*gs://bucket/out.*folder",
    ),
    "a file URL": (lambda: stream().sink("step", weir.ParquetSink("file:///out")), "path.*file:///out.*folder"),
    "a URL that Path has cut": (
        lambda: stream().sink("step", weir.ParquetSink(str(Path("hdfs://host/out")))),
        "path.*hdfs:/host/out.*folder",
    ),
    "a URL without slashes": (lambda: stream().sink("step", weir.ParquetSink("s3:bucket")), "path.*s3:bucket.*folder"),
    "a variable": (lambda: stream().sink("step", weir.ParquetSink("$HOME/out")), "path.*variables are not expanded"),
    "a blank before a folder": (lambda: stream().sink("step", weir.ParquetSink(" /tmp/out")), "path.*white space"),
    "a home folder": (lambda: stream().sink("step", weir.ParquetSink("~/out")), "path.*~/out.*not expanded"),
    "a rate of a source": (
        lambda: weir.Dataflow("mistakes").source("step", weir.SequenceSource(rows=-1)),
        "step: rows: must not be negative",
    ),
    "event time of a source": (
        lambda: weir.Dataflow("mistakes").source(
            "step", weir.DirectorySource("/in", weir.JsonLinesFormat(SCHEMA), event_time="zz")
        ),
        "step: event_time: zz: there is no such column; there are key, n",
    ),
    "disorder of 1.5 ms": (
        directory(max_disorder_ms=1.5),
        "step: max_disorder_ms must be a whole number.*1.5",
    ),
    "disorder as a switch": (directory(max_disorder_ms=True), "step: max_disorder_ms must be a whole number.*True"),
    "disorder beyond 64 bits": (directory(max_disorder_ms=2**70), "step: max_disorder_ms must be a whole number"),
    "disorder without event time": (directory(event_time=None), "step: max_disorder_ms: needs event_time"),
    "future as text": (directory(max_future_ms="5"), "step: max_future_ms must be a whole number or None, not '5'"),
    "a switch as text": (directory(bounded="no"), "step: bounded must be True or False, not 'no'"),
    "a rate of nothing": (
        lambda: weir.Dataflow("mistakes").source("step", weir.SequenceSource(rows_per_second=float("nan"))),
        "step: rows_per_second must be a number or None, not nan",
    ),
    "a text as number": (
        lambda: stream().sink("step", weir.CsvSink("/out", delimiter=1)),  # type: ignore[arg-type]
        "step: delimiter must be a text, not 1",
    ),
    "a setting of a sink": (
        lambda: stream().sink("step", weir.KafkaSink("nowhere", "topic", weir.KafkaText())),
        "step: servers: must be host:port",
    ),
    "a class as source": (
        lambda: weir.Dataflow("mistakes").source("step", weir.DirectorySource),  # type: ignore[arg-type]
        r"source must be an instance, not the class DirectorySource: write DirectorySource\(\.\.\.\)",
    ),
    "a class as sink": (
        lambda: stream().sink("step", weir.DiscardSink),  # type: ignore[arg-type]
        "sink must be an instance, not the class DiscardSink",
    ),
    "a class within a stream": (
        lambda: stream().write_through("step", weir.DiscardSink),  # type: ignore[arg-type]
        "sink must be an instance, not the class DiscardSink",
    ),
    "a sink as source": (
        lambda: weir.Dataflow("mistakes").source("step", weir.DiscardSink()),  # type: ignore[arg-type]
        "source must be a source, not DiscardSink, which has no bounded, reader",
    ),
    "no sink": (
        lambda: stream().sink("step", None),  # type: ignore[arg-type]
        "sink must be a sink, not NoneType, which has no guarantee, writer, committer, check",
    ),
    "rows wait less than no time": (
        lambda: keyed().batches("step", lambda batch: batch, max_rows=0, max_wait_ms=1),
        "max_rows.*at least 1",
    ),
    "on_error is a folder": (
        lambda: stream().map("step", dict, SCHEMA, on_error="/letters"),  # type: ignore[arg-type]
        r"on_error.*weir\.SetAside\(folder\), not '/letters'",
    ),
    "no limit": (
        lambda: stream().map("step", dict, SCHEMA, on_error=weir.SetAside("/letters", max_per_minute=0)),
        "on_error needs max_per_minute.*at least 1 and at most 100,000, not 0",
    ),
    "no limit in effect": (
        lambda: stream().map("step", dict, SCHEMA, on_error=weir.SetAside("/letters", max_per_minute=10**30)),
        "on_error needs max_per_minute.*at most 100,000",
    ),
    "batches that cannot run again": (
        lambda: stream().map_batches("step", len, on_error=weir.SetAside("/letters")),
        "on_error needs repeatable=True",
    ),
    "a changelog with on_error": (
        lambda: (
            keyed()
            .aggregate("counts", COUNT, changelog=True)
            .filter("step", pc.field("n") > 0, on_error=weir.SetAside("/letters"))
        ),
        "on_error.*totals",
    ),
    "dead letters in a bucket": (
        lambda: stream().map("step", dict, SCHEMA, on_error=weir.SetAside("s3://letters")),
        "step.dead_letters: path.*s3",
    ),
    "same uid": (
        lambda: (flow := stream()).map_batches("numbers", len).sink("o", weir.ParquetSink("o")) or flow.flow.compile(1),  # type: ignore[func-returns-value]
        "numbers.*two operators",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_before_the_start(mistake: str) -> None:
    build, message = MISTAKES[mistake]
    with pytest.raises(weir.JobRejected, match=f"(?s){message}") as error:
        build()
    text = str(error.value)
    assert "step" in text or mistake in ("keys in a list", "same uid"), "the operator is named"


def test_only_a_bounded_source_may_read_the_dead_letters_of_its_job() -> None:
    once = weir.DirectorySource("/letters", weir.JsonLinesFormat(SCHEMA), bounded=True)
    watched, other = replace(once, bounded=False), replace(once, path="/in")

    def compiled(*sources: weir.DirectorySource) -> JobGraph:
        flow, policy = weir.Dataflow("replay"), weir.SetAside("/letters")
        first, *others = (flow.source(f"source_{number}", source) for number, source in enumerate(sources))
        rows = first.union("all", *others) if others else first
        rows.map("step", dict, SCHEMA, on_error=policy).sink("out", weir.DiscardSink())
        return flow.compile(1).graph

    letters = {each.uid: each.dead_letters for each in compiled(once).operators if each.dead_letters}
    assert letters == {"step.dead_letters": "/letters"}
    for sources, at_fault in (
        ([watched], 0),
        ([watched, once], 0),
        ([once, watched], 1),
        ([replace(other, on_malformed="dead_letter", dead_letter_path="/letters")], 0),
    ):
        with pytest.raises(weir.JobRejected, match=f"the source 'source_{at_fault}' uses"):
            compiled(*sources)


def test_numbers_of_numpy_are_numbers() -> None:
    source = weir.SequenceSource(rows=np.int64(5), keys=np.int32(2), rows_per_second=np.float64(10))  # type: ignore[arg-type]
    weir.Dataflow("numbers").source("step", source)


def test_a_window_on_an_unbounded_source_without_event_time_is_refused(tmp_path: Path) -> None:
    """It would never fire."""
    flow = weir.Dataflow("mistakes")
    read = flow.source("files", files(str(tmp_path)))
    passed = read.map_batches("same", lambda batch: batch)
    passed.key_by("key").window("step", 5 * MS, "at", COUNT).sink("out", weir.ParquetSink(str(tmp_path / "out")))
    with pytest.raises(weir.JobRejected, match=r"step: .*never fire.*'files'.*event_time") as error:
        flow.compile(1)
    assert error.value.code == "no-event-time"


def test_a_job_that_would_read_its_own_output_is_refused(tmp_path: Path) -> None:
    flow = weir.Dataflow("mistakes")
    flow.source("files", files(str(tmp_path))).sink("step", weir.ParquetSink(f"{tmp_path}/."))
    with pytest.raises(weir.JobRejected, match=r"step: .*the source 'files' uses") as error:
        flow.compile(1)
    assert error.value.code == "same-folder"


@pytest.mark.parametrize("storage", ["s3://bucket", "s3:bucket", "gs://bucket/job", "~/job"])
def test_a_storage_of_another_form_is_refused(tmp_path: Path, storage: str) -> None:
    flow = weir.Dataflow("mistakes")
    flow.source("numbers", Numbers(total=1)).sink("out", weir.ParquetSink(str(tmp_path)))
    with pytest.raises(weir.JobRejected, match=r"run_local.*storage.*" + storage):
        weir.run_local(flow, storage=storage)


def test_a_window_on_an_authors_own_source_without_watermarks_is_refused(tmp_path: Path) -> None:
    flow = weir.Dataflow("mistakes")
    read = flow.source("own", Numbers(total=1, unbounded=True))
    read.key_by("key").window("step", 5 * MS, "n", COUNT).sink("out", weir.ParquetSink(str(tmp_path / "out")))
    with pytest.raises(weir.JobRejected, match=r"step: .*never fire.*'own'.*event_time"):
        flow.compile(1)


@pytest.mark.parametrize("arguments", [{"bounded": True}, {"event_time": "key"}])
def test_a_window_fires_on_what_ends_or_has_event_time(tmp_path: Path, arguments: dict[str, Any]) -> None:
    flow = weir.Dataflow("right")
    read = flow.source("files", weir.DirectorySource(str(tmp_path), weir.JsonLinesFormat(SCHEMA), **arguments))
    read.key_by("key").window("step", 5 * MS, "key", COUNT).sink("out", weir.ParquetSink(str(tmp_path / "out")))
    assert flow.compile(1)


def test_a_file_where_a_folder_is_wanted_ends_the_run_at_once(tmp_path: Path) -> None:
    """S1-33: no restart can help against it."""
    file = tmp_path / "file"
    file.write_text("")
    for read, written in ((str(file), "out"), (str(tmp_path / "in"), "file")):
        (tmp_path / "in").mkdir(exist_ok=True)
        flow = weir.Dataflow("mistakes")
        flow.source("files", files(read)).sink("out", weir.ParquetSink(str(tmp_path / written)))
        with running(flow.compile(1), tmp_path / "state", restart=weir.FixedDelay(attempts=9, delay_ms=1)) as run:
            run.join()
            assert run.records.failure is not None
            assert re.search(f"path: {file} is (a file|not a folder)", str(run.records.failure))
            assert len(run.records.attempts) == 1


class Misspelling(weir.KeyedProcessFunction):
    def process(self, row: Any, context: Any, out: Any) -> None:
        out.emit({"key": row["key"], "count": 1})


def test_a_misspelt_output_column_ends_the_run_and_is_named_with_its_operator(tmp_path: Path) -> None:
    flow = weir.Dataflow("mistakes")
    read = flow.source("numbers", Numbers(total=10))
    read.key_by("key").process("step", Misspelling, SCHEMA).sink("out", weir.ParquetSink(str(tmp_path / "out")))
    with running(flow.compile(1), tmp_path / "state", restart=weir.FixedDelay(attempts=9, delay_ms=1)) as run:
        run.join()
        assert re.search("'step'.*count: .*no such column; it has key, n", str(run.records.failure))
        assert len(run.records.attempts) == 1
    assert not [*(tmp_path / "out").glob("part-*")]


def _twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("key", batch.column("key"))


FOLLOWING: dict[str, Callable[[weir.Stream], weir.Stream]] = {
    "sink": lambda s: s,
    "aggregate": lambda s: s.key_by("key").aggregate("next", COUNT),
    "filter": lambda s: s.filter("next", pc.field("value") >= 0),
    "select": lambda s: s.select("next", "key"),
    "rows": lambda s: s.map("next", lambda row: {"key": row["key"], "n": 1}, SCHEMA),
    "window": lambda s: s.key_by("key").window("next", 5 * MS, "value", COUNT),
}


@pytest.mark.parametrize("following", FOLLOWING.values(), ids=FOLLOWING)
def test_two_columns_of_one_name_are_an_error_of_the_step_that_made_them(tmp_path: Path, following: Any) -> None:
    """Not of the next step, which cannot choose between them."""
    flow = weir.Dataflow("mistakes")
    stream = flow.source("numbers", Numbers(total=10)).map_batches("step", _twice)
    following(stream).sink("out", weir.ParquetSink(str(tmp_path / "out")))
    with running(flow.compile(1), tmp_path / "state", restart=weir.FixedDelay(attempts=9, delay_ms=1)) as run:
        run.join()
        assert run.records.failure is not None
        assert run.records.failure["operator"] == "step"
        assert "two columns of its output have the name 'key'" in str(run.records.failure)
        assert len(run.records.attempts) == 1


class Doubled(Numbers):
    def output_columns(self) -> pa.Schema:
        return pa.schema([("key", pa.int64()), ("key", pa.int64())])


def test_two_columns_of_one_name_in_a_source_are_refused_before_the_start() -> None:
    with pytest.raises(weir.JobRejected, match="numbers: two columns of its output have the name 'key'"):
        weir.Dataflow("mistakes").source("numbers", Doubled(total=1))


def test_an_error_of_the_pre_aggregation_names_the_window(tmp_path: Path) -> None:
    """It runs in the subtask of the source, whose columns are not known before the first batch."""
    flow = weir.Dataflow("mistakes")
    read = flow.source("numbers", Numbers(total=10))
    read.key_by("key").window("step", 5 * MS, "tiem", COUNT).sink("out", weir.ParquetSink(str(tmp_path / "out")))
    with running(flow.compile(1), tmp_path / "state", restart=weir.FixedDelay(attempts=9, delay_ms=1)) as run:
        run.join()
        assert run.records.failure is not None
        assert run.records.failure["operator"] == "step"
        assert re.search("'step'.*after 'numbers'.*tiem: there is no such column", str(run.records.failure))
        assert len(run.records.attempts) == 1


def test_a_factory_of_a_function_that_yields_is_refused_when_it_is_called() -> None:
    """What a factory makes is not known before."""
    stream = keyed().process("step", partial(Yielding), SCHEMA)
    code = next(step.code for step in stream.flow._plan.steps if step.uid == "step")
    with pytest.raises(weir.JobRejected, match=r"process uses yield: .*out\.emit"):
        code()
