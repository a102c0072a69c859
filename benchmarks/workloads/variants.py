"""Workloads over data sets: their systems, and what is derived from each of them."""

from dataclasses import replace
from typing import Final

from benchmarks.workload import Workload

SYSTEMS: Final = ("weir", "spark", "duckdb")


def as_json(workload: Workload, rows: int) -> Workload:
    """The same over JSON lines instead of Parquet, with fewer rows and without a target."""
    return replace(
        workload,
        name=f"{workload.name}-json",
        title=workload.title.replace("Parquet into", "JSON lines into"),
        files="json",
        rows=dict.fromkeys(workload.rows, rows),
        target=None,
        group="",
    )


def read_only(workload: Workload) -> Workload:
    """The same input, read with all its columns and discarded: the cost of the source, and of parsing.

    Flink SQL takes part with JSON; its distribution has no Parquet.
    """
    systems = (*SYSTEMS, "flink_sql") if workload.files == "json" else SYSTEMS
    return replace(
        workload,
        rows=dict.fromkeys(systems, workload.rows["weir"]),
        name=f"{workload.name.split('-q0')[0]}-W0",
        title=f"the input of {workload.name}, read and discarded",
        kind=f"{workload.kind}-read",
        found="",
        expected="",
        batch="",
        late="",
        target=None,
        group="",
        sink="discard",
        partition_by=(),
        output={},
        totals=lambda rows: {"rows_out": rows},
    )
