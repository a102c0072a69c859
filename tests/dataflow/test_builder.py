"""What the builder of a job takes over from its sources and sinks, and makes of its edges."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from runtime.connectors.formats import JsonLinesFormat
from runtime.connectors.formats.lines import LineFormat
from runtime.connectors.postgres.changes import PostgresChanges
from runtime.connectors.sinks.json_lines import JsonLinesSink
from runtime.connectors.sinks.parquet import ParquetSink
from runtime.connectors.sinks.print import PrintSink
from runtime.connectors.sources.directory import DirectorySource
from runtime.connectors.sources.hybrid import then
from runtime.connectors.sources.sequence import SequenceSource
from runtime.connectors.tables.delta import DeltaSink
from runtime.core.job.graph import Guarantee, Partitioning, Role
from runtime.core.job.ids import OperatorId
from runtime.dataflow.builder import Dataflow
from runtime.errors import JobRejected
from runtime.operators.aggregates import Count
from runtime.operators.windows.pre_aggregation import WindowPreAggregator
from runtime.operators.windows.sliding import SlidingWindow
from runtime.operators.windows.tumbling import TumblingWindow
from tests.jobs.numbers import Numbers


class Socket(Numbers):
    """It gives what comes, and cannot give it again."""

    guarantee = "none"


class Boastful(Numbers):
    guarantee = "every-time"


def test_the_graph_names_sources_with_a_single_reader() -> None:
    flow = Dataflow("changes", required_guarantee="none")
    flow.source("numbers", Numbers(total=1)).sink("shown", PrintSink())
    changes = PostgresChanges("postgresql://weir@db/shop", "orders", "orders", "orders")
    flow.source("changes", changes).sink("printed", PrintSink())
    readers = {operator.uid: operator.exclusive for operator in flow.compile(1).graph.operators}
    assert readers == {"numbers": False, "shown": False, "changes": True, "printed": False}


def test_the_graph_carries_what_each_end_of_the_job_promises(tmp_path: Path) -> None:
    """S1-01, S1-23, S4-47: a source that cannot go back is named as such."""
    flow = Dataflow("ends", required_guarantee="none")
    flow.source("socket", Socket(total=1)).sink("shown", PrintSink())
    flow.source("numbers", Numbers(total=1)).sink("files", ParquetSink(str(tmp_path)))
    guarantees = {operator.uid: operator.guarantee for operator in flow.compile(1).graph.operators}
    assert guarantees == {
        "socket": Guarantee.NONE,
        "shown": Guarantee.AT_LEAST_ONCE,
        "numbers": Guarantee.EXACTLY_ONCE,
        "files": Guarantee.EXACTLY_ONCE,
    }


def test_a_job_that_may_lose_records_is_refused_unless_its_author_accepts_it() -> None:
    """S4-47: the refusal names the source, and the argument that accepts less."""
    flow = Dataflow("lossy")
    flow.source("socket", Socket(total=1)).sink("shown", PrintSink())
    with pytest.raises(JobRejected, match=r"Source socket cannot rewind.*required_guarantee='none'") as error:
        flow.compile(1)
    assert error.value.code == "weak-guarantee"


def test_an_author_may_require_exactly_once(tmp_path: Path) -> None:
    flow = Dataflow("strict", required_guarantee="exactly-once")
    numbers = flow.source("numbers", Numbers(total=1))
    numbers.sink("files", ParquetSink(str(tmp_path)))
    flow.compile(1)
    numbers.write_through("shown", PrintSink()).sink("more", ParquetSink(str(tmp_path / "more")))
    with pytest.raises(JobRejected, match="Sink shown publishes records before their checkpoint"):
        flow.compile(1)


def test_an_unknown_guarantee_is_refused_by_name() -> None:
    flow = Dataflow("odd", required_guarantee="mostly")
    flow.source("numbers", Numbers(total=1)).sink("shown", PrintSink())
    with pytest.raises(JobRejected, match="required_guarantee: guarantee must be one of"):
        flow.compile(1)


def test_a_sink_within_the_stream_counts_as_a_sink(tmp_path: Path) -> None:
    """S1-01: its guarantee and its folders; the columns of the stream pass through."""
    flow = Dataflow("through")
    numbers = flow.source("numbers", SequenceSource(rows=10))
    after = numbers.write_through("shown", PrintSink())
    assert after.columns == numbers.columns
    after.write_through("files", ParquetSink(str(tmp_path))).sink("out", PrintSink())
    graph = flow.compile(2).graph
    facts = {str(operator.uid): (operator.role, operator.commits, operator.guarantee) for operator in graph.operators}
    assert facts["shown"] == (Role.OPERATOR, True, Guarantee.AT_LEAST_ONCE)
    assert facts["files"] == (Role.OPERATOR, True, Guarantee.EXACTLY_ONCE)
    with pytest.raises(JobRejected) as error:
        numbers.write_through("bucket", ParquetSink("s3://bucket"))
    assert (error.value.code, error.value.field) == ("bad-path", "bucket")


def test_a_sink_within_the_stream_does_not_write_where_a_source_reads(tmp_path: Path) -> None:
    flow = Dataflow("round")
    lines = flow.source("lines", DirectorySource(str(tmp_path), LineFormat()))
    lines.write_through("files", ParquetSink(str(tmp_path))).sink("out", PrintSink())
    with pytest.raises(JobRejected) as error:
        flow.compile(1)
    assert (error.value.code, error.value.field) == ("same-folder", "files")


@pytest.mark.parametrize("sink", [ParquetSink, DeltaSink, partial(JsonLinesSink, roll_on_checkpoint=True)])
def test_a_sink_does_not_write_into_the_bucket_that_a_source_reads(
    sink: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEIR_DATA_ROOTS", raising=False)
    url = "s3://${secret:id}:${secret:key}@lake/in/?region=eu-central-1"
    source = DirectorySource(url, JsonLinesFormat(pa.schema([("n", pa.int64())])))
    for target, is_refused in (("s3://lake/in", True), ("s3://lake/in/", True), ("s3://lake/out", False)):
        flow = Dataflow("round")
        flow.source("lines", then(DirectorySource(url, source.format, bounded=True), source)).sink("out", sink(target))
        if not is_refused:
            flow.compile(1)
            continue
        with pytest.raises(JobRejected, match=rf"it would write into {target}, which the source 'lines' uses") as error:
            flow.compile(1)
        assert (error.value.code, error.value.field) == ("same-folder", "out")


def test_a_promise_that_nobody_knows_is_refused_by_the_name_of_its_operator() -> None:
    with pytest.raises(JobRejected, match="exactly-once, at-least-once, none") as error:
        Dataflow("ends").source("numbers", Boastful(total=1))
    assert (error.value.code, error.value.field) == ("bad-guarantee", "numbers")


def test_a_routing_of_the_authors_is_an_edge_that_names_its_columns(tmp_path: Path) -> None:
    """S3-30: a sink may be behind it, and the function travels beside the graph."""
    flow = Dataflow("dealt")
    numbers = flow.source("numbers", Numbers(total=1))
    numbers.key_by("key").aggregate("counts", {"n": Count()}).partition_custom(_first, "n", "key").sink(
        "out", ParquetSink(str(tmp_path))
    )
    job = flow.compile(2)
    assert [(edge.partitioning, edge.keys) for edge in job.graph.edges] == [
        (Partitioning.HASH, ("key",)),
        (Partitioning.CUSTOM, ("n", "key")),
    ]
    assert [edge.partitioner for edge in job.edges] == [None, _first]


def _first(rows: pa.RecordBatch, targets: int) -> list[int]:
    return [0] * rows.num_rows


def test_windows_have_a_combiner_on_their_edge_and_nothing_more_in_the_graph(tmp_path: Path) -> None:
    """One for each subtask before them, with panes that no window cuts; a slide of the size is none."""
    flow, counts = Dataflow("windows"), []
    numbers = flow.source("numbers", Numbers(total=1))
    for uid, slide_s in (("tumbling", None), ("same", 10), ("sliding", 4)):
        slide = None if slide_s is None else timedelta(seconds=slide_s)
        windows = numbers.key_by("key").window(uid, timedelta(seconds=10), "value", {"n": Count()}, slide=slide)
        windows.sink(f"out-{uid}", PrintSink())
    job = flow.compile(2)
    foldings = [edge.pre_aggregation for edge in job.edges if edge.pre_aggregation]
    edges = [edge.spec for edge in job.edges if edge.pre_aggregation]
    assert [(edge.source, edge.target, edge.partitioning) for edge in edges] == [
        ("numbers", uid, Partitioning.HASH) for uid in ("tumbling", "same", "sliding")
    ]
    assert len(job.graph.operators) == 7
    assert [folding.pane_ms for folding in foldings] == [10_000, 10_000, 2_000]
    for folding in foldings:
        aggregator, other = folding.create(), folding.create()
        assert isinstance(aggregator, WindowPreAggregator)
        aggregator.add(pa.record_batch({"key": [1, 1], "value": [0, 2_000]}))
        counts.append(sum(parts.num_rows for parts in aggregator.flush()))
        assert other.flush() == []
    assert counts == [1, 1, 2]
    assert [type(job.operators[OperatorId(uid)]()) for uid in ("tumbling", "same", "sliding")] == [
        TumblingWindow, TumblingWindow, SlidingWindow,
    ]  # fmt: skip


def test_windows_that_cannot_be_are_refused_by_name() -> None:
    keyed = Dataflow("windows").source("numbers", Numbers(total=1)).key_by("key")
    with pytest.raises(JobRejected, match="the slide of 20000 ms is longer than the window of 10000 ms") as error:
        keyed.window("w", timedelta(seconds=10), "value", {"n": Count()}, slide=timedelta(seconds=20))
    assert (error.value.code, error.value.field) == ("bad-window", "w")


def test_no_key_is_behind_a_routing_of_the_authors() -> None:
    """S3-30: what deals rows by itself is refused behind it, since the routing would silently have no effect."""
    flow = Dataflow("dealt")
    numbers = flow.source("numbers", Numbers(total=1))
    dealt = numbers.partition_custom(_first, "key")
    with pytest.raises(JobRejected, match="its input uses hash partitioning") as error:
        dealt.key_by("key").aggregate("counts", {"n": Count()})
    assert (error.value.code, error.value.field) == ("bad-partitioning", "counts")
    with pytest.raises(JobRejected, match="table: its input uses broadcast partitioning"):
        numbers.join_broadcast("table", dealt, on=["key"], take=["value"])
    with pytest.raises(JobRejected, match="at least one column"):
        numbers.partition_custom(_first)


def test_a_stream_of_another_dataflow_is_refused() -> None:
    """Its operator might have a namesake here."""
    other = Dataflow("other").source("numbers", Numbers(total=1))
    loop = Dataflow("own").source("numbers", Numbers(total=1)).iterate("loop")
    with pytest.raises(JobRejected, match="'numbers' belongs to another dataflow, 'other'") as error:
        loop.close_with(other)
    assert (error.value.code, error.value.field) == ("bad-input", "loop")


def test_a_keyed_stream_where_rows_are_read_is_refused_by_name() -> None:
    loop = Dataflow("own").source("numbers", Numbers(total=1)).iterate("loop")
    with pytest.raises(JobRejected, match="leave out the key_by") as error:
        loop.close_with(loop.key_by("key"))  # type: ignore[arg-type]
    assert (error.value.code, error.value.field) == ("bad-input", "loop")


class Described(Numbers):
    """A source that knows its columns before it reads."""

    def output_columns(self) -> pa.Schema:
        return pa.schema([("key", pa.float32()), ("amount", pa.decimal256(50, 2))])


def test_key_types_are_in_the_graph_where_a_source_or_a_step_declares_its_columns(tmp_path: Path) -> None:
    flow = Dataflow("typed")
    read = flow.source("numbers", Described(total=1))
    read.key_by("key").aggregate("direct", {"n": Count()}).sink("one", ParquetSink(str(tmp_path / "one")))
    other = pa.schema([("name", pa.dictionary(pa.int8(), pa.string()))])
    stream = read.flat_map("rows", lambda row: [], other).key_by("name").aggregate("declared", {"n": Count()})
    stream.sink("two", ParquetSink(str(tmp_path / "two")))
    unknown = read.map_batches("batches", lambda batch: batch).key_by("key").aggregate("unknown", {"n": Count()})
    unknown.sink("three", ParquetSink(str(tmp_path / "three")))
    edges = {edge.target: edge.key_types for edge in flow.compile(2).graph.edges if edge.keys}
    assert edges == {"direct": ("float",), "declared": ("string",), "unknown": ()}


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("amount", r"amount: a column of type decimal256\(50, 2\) cannot be a key \(operator 'counts'\)"),
        ("absent", "absent: there is no such key column for operator 'counts'; there are key, amount"),
    ],
)
def test_a_key_column_that_cannot_be_is_refused_when_the_job_is_compiled(column: str, message: str) -> None:
    keyed = Dataflow("typed").source("numbers", Described(total=1)).key_by(column)
    with pytest.raises(JobRejected, match=message):
        keyed.aggregate("counts", {"n": Count()})


def test_a_column_that_a_partitioner_lacks_is_refused_when_the_job_is_compiled() -> None:
    numbers = Dataflow("typed").source("numbers", Described(total=1)).partition_custom(_first, "key", "absent")
    message = r"absent: there is no such column for the partitioner before operator 'out'; there are key, amount"
    with pytest.raises(JobRejected, match=message) as error:
        numbers.sink("out", PrintSink())
    assert (error.value.code, error.value.field) == ("unknown-column", "absent")
