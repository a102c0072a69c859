"""Row-wise functions with two streams, which share states and timers (Flink: `CoProcessFunction`).

    class Matches(KeyedCoProcessFunction):
        # Emits an order when its payment has come, in whatever order they arrive.

        def open(self, context):
            self.order = context.value_state("order")
            self.paid = context.value_state("paid")

        def process1(self, order, context, out):
            if self.paid.get():
                out.emit(order)
            else:
                self.order.update(order)

        def process2(self, payment, context, out):
            if (order := self.order.get()) is not None:
                out.emit(order)
            self.paid.update(True)

    orders.key_by("id").connect(payments.key_by("order")).process("matches", Matches, schema)

The order of rows of different streams is not defined. Event time is the minimum of both streams.
"""

from runtime.operators.functions.function import CoFunction
from runtime.operators.functions.keyed_process import ProcessContext
from runtime.operators.functions.process import SubtaskContext


class CoProcessFunction(CoFunction[SubtaskContext]):
    """A function without keys: state and processing-time timers belong to the subtask."""


class KeyedCoProcessFunction(CoFunction[ProcessContext]):
    """A function with state and timers per key. Rows of both streams with equal keys share them."""
