"""Example: orders with the payments that follow within minutes, by an interval join of two streams in event time.

orders (folder of JSON lines) ───┬ interval join by order ──┬ paid orders
payments (folder of JSON lines) ─┘                          ├ late orders
                                                            └ late payments
"""

from datetime import timedelta
from typing import Annotated

import msgspec
import pyarrow as pa
from msgspec import Meta

import weir
from examples.samples.folders import Bounded, Folder, sample_folder

TIME = pa.timestamp("ms")
ORDERS = pa.schema(
    [("order_id", pa.int64()), ("ordered_at", TIME), ("customer", pa.string()), ("amount", pa.float64())]
)
PAYMENTS = pa.schema([("order_id", pa.int64()), ("paid_at", TIME), ("method", pa.string())])
LATE_ORDERS = weir.OutputTag("late_orders", ORDERS)
LATE_PAYMENTS = weir.OutputTag("late_payments", PAYMENTS)


class OrderPaymentsParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    orders_dir: Annotated[Folder, Meta(title="Folder of orders", description="JSON lines, read as files appear.")] = (
        sample_folder("order_payments/orders")
    )
    payments_dir: Annotated[
        Folder, Meta(title="Folder of payments", description="JSON lines, read as files appear.")
    ] = sample_folder("order_payments/payments")
    output_dir: Annotated[
        Folder, Meta(title="Output folder", description="Gets the folders paid, late_orders and late_payments.")
    ] = sample_folder("order_payments")
    within_minutes: Annotated[
        int, Meta(ge=0, title="Time to pay (minutes)", description="A payment this long after its order belongs to it.")
    ] = 15
    max_disorder_s: Annotated[
        int, Meta(ge=0, title="Largest disorder (s)", description="The join waits for rows this far behind.")
    ] = 60
    bounded: Bounded = False


def build(params: OrderPaymentsParams, context: weir.PipelineContext) -> weir.Dataflow:
    def files(folder: str, schema: pa.Schema, time: str) -> weir.DirectorySource:
        return weir.DirectorySource(
            folder,
            weir.JsonLinesFormat(schema),
            event_time=time,
            max_disorder_ms=params.max_disorder_s * 1000,
            bounded=params.bounded,
        )

    flow = weir.Dataflow("order_payments")
    orders = flow.source("orders", files(params.orders_dir, ORDERS, "ordered_at"))
    payments = flow.source("payments", files(params.payments_dir, PAYMENTS, "paid_at"))

    paid = (
        orders.key_by("order_id")
        .interval_join(payments.key_by("order_id"))
        .between(
            "paid",
            timedelta(0),
            timedelta(minutes=params.within_minutes),
            time=("ordered_at", "paid_at"),
            late_to=(LATE_ORDERS, LATE_PAYMENTS),
        )
    )
    paid.sink("paid_files", weir.ParquetSink(f"{params.output_dir}/paid"))
    paid.side_output(LATE_ORDERS).sink("late_order_files", weir.ParquetSink(f"{params.output_dir}/late_orders"))
    paid.side_output(LATE_PAYMENTS).sink("late_payment_files", weir.ParquetSink(f"{params.output_dir}/late_payments"))
    return flow


PIPELINE = weir.Pipeline(
    name="order_payments",
    description="Example: an interval join of orders and payments. See docs/examples/order_payments.md.",
    params=OrderPaymentsParams,
    build=build,
)
