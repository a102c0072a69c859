"""Example: orders get their customer by one query per batch, and are upserted into a table of Postgres.

orders (folder of JSON lines) ─ batches by customer: look up customers ─ upsert by order
"""

from typing import Annotated, Any, Literal

import msgspec
import psycopg
import pyarrow as pa
from msgspec import Meta
from psycopg import sql

import weir
from examples.samples.folders import EXAMPLES_URL, Bounded, Folder, sample_folder

ORDERS = pa.schema(
    [
        ("order_id", pa.int64()),
        ("customer", pa.int64()),
        ("amount", pa.float64()),
        ("ordered_at", pa.timestamp("ms")),
    ]
)


class EnrichmentParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    orders_dir: Annotated[Folder, Meta(title="Folder of orders", description="JSON lines, read as files appear.")] = (
        sample_folder("enrichment/orders")
    )
    database_url: Annotated[
        str, Meta(title="Database", description="${connection:NAME}, or the address of a Postgres.")
    ] = EXAMPLES_URL
    customers: Annotated[
        str, Meta(title="Table of customers", description="Has the columns customer, name and segment.")
    ] = "enrichment.customers"
    target: Annotated[
        str, Meta(title="Target table", description="Has the columns of an order, name and segment; key order_id.")
    ] = "enrichment.orders"
    batch_rows: Annotated[int, Meta(ge=1, title="Rows per batch", description="The largest batch.")] = 500
    batch_wait_ms: Annotated[
        int, Meta(ge=0, title="Waiting time (ms)", description="An incomplete batch is not delayed longer.")
    ] = 200
    commit: Annotated[
        Literal["staged", "immediate"],
        Meta(title="Commit", description="staged: exactly once, with the checkpoint. immediate: each batch at once."),
    ] = "staged"
    bounded: Bounded = False


class CustomerLookup:
    """Adds name and segment of the customer to each order; null for an unknown customer."""

    def __init__(self, url: str, table: str) -> None:
        self.url = url
        self.query = sql.SQL("SELECT customer, name, segment FROM {} WHERE customer = ANY(%s)").format(
            sql.Identifier(*table.split("."))
        )
        self.connection: psycopg.Connection[Any] | None = None  # opened where the job runs, by the first batch

    def __call__(self, orders: pa.RecordBatch) -> pa.RecordBatch:
        if self.connection is None or self.connection.closed:
            self.connection = weir.spi.connect_postgres(self.url)  # checks host and secret, as PostgresSink does
            self.connection.autocommit = True
        rows = self.connection.execute(self.query, [orders["customer"].unique().to_pylist()])
        customers = {customer: (name, segment) for customer, name, segment in rows}
        pairs = [customers.get(customer, (None, None)) for customer in orders["customer"].to_pylist()]
        orders = orders.append_column("name", pa.array([name for name, _ in pairs], pa.string()))
        return orders.append_column("segment", pa.array([segment for _, segment in pairs], pa.string()))


def build(params: EnrichmentParams, context: weir.PipelineContext) -> weir.Dataflow:
    flow = weir.Dataflow("enrichment")
    files = weir.DirectorySource(params.orders_dir, weir.JsonLinesFormat(ORDERS), bounded=params.bounded)
    orders = flow.source("orders", files)
    enriched = orders.key_by("customer").batches(
        "customers",
        CustomerLookup(params.database_url, params.customers),
        max_rows=params.batch_rows,
        max_wait_ms=None if params.bounded else params.batch_wait_ms,  # the end of the input completes the last batch
        flush_on_barrier=True,  # the rows before a barrier are committed with its checkpoint
    )
    target = weir.PostgresSink(params.database_url, params.target, key=["order_id"], commit=params.commit)
    enriched.sink("upserts", target)
    return flow


PIPELINE = weir.Pipeline(
    name="enrichment",
    description="Example: orders get their customer by one query per batch. See docs/examples/enrichment.md.",
    params=EnrichmentParams,
    build=build,
)
