"""A whole job that leaves out unused columns, and one over the same rows that reads all: equal output."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import weir
from runtime.connectors.sources.directory import DirectorySource
from runtime.dataflow.plan import CompiledJob
from tests.contracts.files import drop
from tests.jobs.conftest import Jobs
from tests.jobs.numbers import committed

COLUMNS = pa.schema([(name, pa.int64()) for name in ("id", "zone", "at", "fare", "tip")])


def totals(folder: Path, output: Path, reads_all: bool) -> weir.Dataflow:
    flow = weir.Dataflow("totals")
    source = DirectorySource(str(folder), weir.JsonLinesFormat(COLUMNS), event_time="at", bounded=True)
    rows = flow.source("rows", source)
    zones = flow.source("zones", DirectorySource(f"{folder}/zones", weir.JsonLinesFormat(COLUMNS), bounded=True))
    if reads_all:
        rows = rows.map("same", dict, COLUMNS)
    paid = rows.filter("paid", pc.field("fare") > 3).with_columns("double", double=pc.field("fare") * 2)
    trips = paid.join_broadcast(
        "named", zones.select("narrow", "zone", name=pc.field("tip")), on=["zone"], take=["name"]
    )
    sums = trips.key_by("name")
    sums.aggregate("sums", {"n": weir.Count(), "double": weir.Sum("double")}).key_by("name").aggregate(
        "last", {"n": weir.Max("n"), "double": weir.Max("double")}
    ).sink("out", weir.ParquetSink(str(output)))
    return flow


def columns_of(job: CompiledJob) -> list[str]:
    (source,) = (source for uid, source in job.sources.items() if uid == "rows")
    assert isinstance(source, DirectorySource)
    columns = source.output_columns()
    assert columns is not None
    return list(columns.names)


def test_the_output_does_not_depend_on_the_columns_that_are_left_out(tmp_path: Path, jobs: Jobs) -> None:
    """Both jobs aggregate the same rows by the same keys. Files are parsed, joined, partitioned and sent."""
    rows = [f'{{"id": {n}, "zone": {n % 4}, "at": {n}, "fare": {n % 9}, "tip": {n % 5}}}\n' for n in range(2_000)]
    for part in range(4):
        drop(tmp_path / "in", f"{part}.jsonl", "".join(rows[part::4]))
    drop(tmp_path / "in" / "zones", "zones.jsonl", "".join(f'{{"zone": {n}, "tip": {n % 2}}}\n' for n in range(4)))
    outputs = []
    for reads_all in (False, True):
        output = tmp_path / f"out{reads_all}"
        job = totals(tmp_path / "in", output, reads_all).compile(2)
        assert reads_all == (columns_of(job) == COLUMNS.names)
        jobs.run_to_end(job, tmp_path / f"state{reads_all}")
        by_key = {
            name: max((row["n"], row["double"]) for row in committed(output) if row["name"] == name) for name in (0, 1)
        }
        outputs.append(by_key)
    fares = [(n % 4 % 2, n % 9) for n in range(2_000) if n % 9 > 3]
    expected = {
        name: (sum(key == name for key, _ in fares), sum(2 * fare for key, fare in fares if key == name))
        for name in (0, 1)
    }
    assert outputs == [expected, expected]
