"""Example: the changes of a table of Postgres, as a history in Parquet files and as a copy in another table.

changes (replication slot: initial rows, then inserts, updates, deletions) ─┬ history (Parquet)
                                                                            └ copy (upserts and deletions by key)

Bounded, the job reads the rows that the table has, as inserts, and ends: a replication slot has no end.
"""

from typing import Annotated

import msgspec
import pyarrow.compute as pc
from msgspec import Meta

import weir
from examples.samples.folders import EXAMPLES_URL, Bounded, Folder, sample_folder


class ChangeCaptureParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    database_url: Annotated[
        str, Meta(title="Database", description="${connection:NAME}, or the address of a Postgres.")
    ] = EXAMPLES_URL
    table: Annotated[str, Meta(title="Table", description="Its changes are captured.")] = "change_capture.accounts"
    publication: Annotated[str, Meta(title="Publication", description="Contains the table.")] = "accounts"
    slot: Annotated[str, Meta(title="Replication slot", description="A slot of pgoutput that no other job reads.")] = (
        "accounts"
    )
    copy: Annotated[str, Meta(title="Copy", description="A table with the same columns and the key id.")] = (
        "change_capture.accounts_copy"
    )
    history_dir: Annotated[
        Folder, Meta(title="Folder of the history", description="Committed Parquet files appear here.")
    ] = sample_folder("change_capture/history")
    bounded: Bounded = False


def build(params: ChangeCaptureParams, context: weir.PipelineContext) -> weir.Dataflow:
    flow = weir.Dataflow("change_capture")
    if params.bounded:
        table = weir.PostgresSource(params.database_url, params.table, bounded=True)
        changes = flow.source("rows", table, parallelism=1).with_columns("changes", op=pc.scalar("insert"))
    else:
        source = weir.PostgresChanges(
            params.database_url, params.publication, params.slot, params.table, initial_snapshot=True
        )
        changes = flow.source("changes", source, parallelism=1)  # one subtask keeps the order of the changes
    changes.sink("history", weir.ParquetSink(params.history_dir), parallelism=1)
    copy = weir.PostgresSink(params.database_url, params.copy, key=["id"], op_column="op")
    changes.sink("copy", copy, parallelism=1)
    return flow


PIPELINE = weir.Pipeline(
    name="change_capture",
    description="Example: changes of a Postgres table, as a history and a copy. See docs/examples/change_capture.md.",
    params=ChangeCaptureParams,
    build=build,
)
