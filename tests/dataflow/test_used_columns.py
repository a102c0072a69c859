"""The columns that a compiled job reads, sends and leaves out."""

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import weir
from runtime.connectors.kafka.formats import KafkaJson
from runtime.connectors.kafka.source import KafkaSource
from runtime.connectors.sources.directory import DirectorySource
from runtime.connectors.sources.partition_columns import PartitionBy
from runtime.dataflow.plan import CompiledJob
from runtime.operators.aggregates import AggregateSet
from tests.contracts.files import Reading, drop

RIDES = pa.schema([(name, pa.int64()) for name in ("id", "zone", "at", "fare", "tip", "note", "color")])
NAMES = pa.schema([("zone", pa.int64()), ("name", pa.string()), ("borough", pa.string())])
MINUTE = timedelta(minutes=1)


def rides(flow: weir.Dataflow, event_time: str | None = "at") -> weir.Stream:
    return flow.source(
        "rides", DirectorySource("/rides", weir.JsonLinesFormat(RIDES), event_time=event_time, bounded=True)
    )


def columns_read(job: CompiledJob, uid: str = "rides") -> list[str]:
    source = next(source for name, source in job.sources.items() if name == uid)
    assert isinstance(source, DirectorySource | KafkaSource)
    columns = source.output_columns()
    assert columns is not None
    return list(columns.names)


def ended(stream: weir.Stream) -> CompiledJob:
    stream.sink("out", weir.DiscardSink())
    return stream.flow.compile(2)


def test_steps_that_declare_their_columns_leave_out_the_rest() -> None:
    """A window over a join of filtered rows reads the columns of its own and of each step before it."""
    flow = weir.Dataflow("used")
    names = flow.source("names", DirectorySource("/names", weir.JsonLinesFormat(NAMES), bounded=True))
    paid = rides(flow).filter("paid", pc.field("fare") > 0).with_columns("total", total=pc.field("fare") * 2)
    sums = paid.join_broadcast("named", names, on=["zone"], take=["name"]).key_by("name")
    job = ended(sums.window("sums", MINUTE, "at", {"n": weir.Count(), "total": weir.Sum("total")}))
    assert columns_read(job) == ["zone", "at", "fare"]
    assert columns_read(job, "names") == ["zone", "name"]
    used = {f"{edge.spec.source} to {edge.spec.target}": edge.used_columns for edge in job.edges}
    assert used["paid to total"] == frozenset({"zone", "at", "fare", "total", "name"})
    assert used["named to sums"] == frozenset({"name", "at", "total"})
    assert used["sums to out"] is None


@pytest.mark.parametrize("reader", ["sink", "function", "batches", "late rows", "loop", "side by side"])
def test_sinks_and_functions_read_all_columns(reader: str) -> None:
    flow = weir.Dataflow("all")
    rows = rides(flow)
    keyed = rows.key_by("zone")
    aggregates = {"n": weir.Count()}
    match reader:
        case "sink":
            job = ended(rows.filter("some", pc.field("fare") > 0))
        case "function":
            job = ended(rows.map("step", dict, RIDES))
        case "batches":
            job = ended(rows.map_batches("step", lambda batch: batch))
        case "late rows":
            tag = weir.OutputTag("late", RIDES)
            job = ended(keyed.window("counts", MINUTE, "at", aggregates, late_to=tag))
        case "loop":
            head = rows.iterate("head")
            head.close_with(head.filter("again", pc.field("fare") > 9))
            job = ended(head.select("narrow", "id"))
        case _:
            keyed.aggregate("counts", aggregates).sink("counted", weir.DiscardSink())
            job = ended(rows)
    assert columns_read(job) == RIDES.names


def test_the_column_of_event_times_is_read_for_the_watermark() -> None:
    flow = weir.Dataflow("time")
    assert columns_read(ended(rides(flow).select("narrow", "tip"))) == ["at", "tip"]


def test_a_source_with_dead_letters_reads_whole_rows() -> None:
    flow = weir.Dataflow("letters")
    source = DirectorySource(
        "/rides", weir.JsonLinesFormat(RIDES), bounded=True, on_malformed="dead_letter", dead_letter_path="/letters"
    )
    assert columns_read(ended(flow.source("rides", source).select("narrow", "tip"))) == RIDES.names


def test_at_least_a_column_is_read() -> None:
    """A batch without columns has no number of rows."""
    flow = weir.Dataflow("none")
    job = ended(rides(flow, None).with_columns("one", one=pc.scalar(1)).select("ones", "one"))
    assert columns_read(job) == ["id"]


def test_a_source_of_kafka_reads_the_fields_that_are_used() -> None:
    flow = weir.Dataflow("kafka")
    topic = flow.source("rides", KafkaSource("host:1", "rides", KafkaJson(RIDES), event_time="at", metadata=["key"]))
    job = ended(topic.key_by("zone").aggregate("sums", {"fares": weir.Sum("fare")}))
    assert columns_read(job) == ["zone", "at", "fare", "kafka_key"]


def test_files_without_declared_columns_are_read_as_far_as_they_are_used(tmp_path: Path) -> None:
    """A file may lack a column: the step that uses it reports that, with all columns that it gets."""
    pq.write_table(pa.table({name: [1, 2] for name in RIDES.names}), tmp_path / "a.parquet")
    flow = weir.Dataflow("parquet")
    rows = flow.source("rides", weir.ParquetSource(str(tmp_path), filter=pc.field("tip") > 1))
    job = ended(rows.key_by("zone").aggregate("sums", {"fares": weir.Sum("fare"), "missing": weir.Sum("missing")}))
    (source,) = job.sources.values()
    assert isinstance(source, DirectorySource)
    assert Reading(source).rows() == [{"zone": 2, "fare": 2, "tip": 2}]


@pytest.mark.parametrize("names", [("day",), pa.schema([("day", pa.int32())])])
def test_partitioned_files_with_declared_columns(tmp_path: Path, names: PartitionBy) -> None:
    """The types of mere names are known from the folders only."""
    drop(tmp_path / "day=3", "a.jsonl", "".join(f'{{"zone": {n}, "fare": {n}, "tip": {n}}}\n' for n in (1, 2)))
    flow = weir.Dataflow("partitioned")
    source = DirectorySource(str(tmp_path), weir.JsonLinesFormat(RIDES), bounded=True, partition_by=names)
    rows = flow.source("rides", source)
    rows.key_by("zone").aggregate("sums", {"fares": weir.Sum("fare")}).sink("out", weir.DiscardSink())
    rows.key_by("day").aggregate("days", {"tips": weir.Sum("tip")}).sink("days-out", weir.DiscardSink())
    (read,) = flow.compile(2).sources.values()
    assert Reading(read).rows() == [{"zone": n, "fare": n, "tip": n, "day": 3} for n in (1, 2)]


def test_a_job_may_have_many_steps_in_a_row() -> None:
    flow = weir.Dataflow("long")
    stream = rides(flow)
    for number in range(500):
        stream = stream.filter(f"above-{number}", pc.field("fare") > number)
    assert columns_read(ended(stream.select("narrow", "tip"))) == ["at", "fare", "tip"]


def test_an_aggregate_of_an_author_reads_all_columns() -> None:
    class Median(weir.Sum):
        def columns(self) -> None:
            return None

    flow = weir.Dataflow("own")
    job = ended(rides(flow).key_by("zone").aggregate("sums", {"fares": Median("fare")}))
    assert columns_read(job) == RIDES.names
    assert AggregateSet({"fares": Median("fare")}).fields().names == ["fares:sum"]
