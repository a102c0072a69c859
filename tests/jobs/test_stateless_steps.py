"""Steps without state in whole jobs."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import weir
from tests.jobs.conftest import Jobs
from tests.jobs.numbers import Numbers, committed


def test_a_job_of_expressions_and_rows(tmp_path: Path, jobs: Jobs) -> None:
    """Expressions travel to the slots; a map has one row for each."""
    flow = weir.Dataflow("made")
    numbers = flow.source("numbers", Numbers(total=200))
    even = numbers.filter("even", pc.bit_wise_and(pc.field("value"), 1) == 0)
    roots = even.with_columns("root", root=pc.sqrt(pc.field("value"))).select("narrow", "root")
    schema = pa.schema([("square", pa.int64())])
    roots.map("square", lambda row: {"square": round(row["root"] ** 2)}, schema).sink(
        "out", weir.ParquetSink(str(tmp_path / "out"))
    )
    jobs.run_to_end(flow.compile(2), tmp_path / "state")
    assert sorted(row["square"] for row in committed(tmp_path / "out")) == sorted(list(range(0, 200, 2)) * 4)
