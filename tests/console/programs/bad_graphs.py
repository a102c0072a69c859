"""A pipeline as authors should not write it; what is wrong with it is chosen by its parameter."""

from typing import Any, Literal

import msgspec

import weir
from runtime.core.job.ids import OperatorId
from runtime.dataflow.inputs import StepInput


class Params(msgspec.Struct):
    """`how`: what is wrong."""

    how: Literal["duplicate-uid", "parallelism", "no-sink", "cycle", "open-loop", "endless", "nothing"]


def same(batch: Any) -> Any:
    return batch


def build(params: Params, _: weir.PipelineContext) -> weir.Dataflow:
    flow = weir.Dataflow("bad")
    numbers = flow.source("numbers", weir.SequenceSource(rows=None if params.how == "endless" else 10))
    if params.how == "parallelism":
        numbers = numbers.map_batches("narrow", same, parallelism=-1)
    if params.how == "duplicate-uid":
        numbers = numbers.map_batches("numbers", same)
    if params.how == "open-loop":
        numbers = numbers.iterate("loop")
    steps = numbers.map_batches("one", same)
    last = steps.map_batches("two", same)
    if params.how == "cycle":
        flow._connect(OperatorId("one"), StepInput(stream=last))
    if params.how != "no-sink":
        last.sink("out", weir.DiscardSink())
    return flow


PIPELINE = weir.Pipeline(name="bad", description="Refused.", params=Params, build=build)
