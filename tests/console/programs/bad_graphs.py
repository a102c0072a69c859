"""A pipeline as authors should not write it; what is wrong with it is chosen by its parameter."""

from typing import Any, Literal

import msgspec

from runtime.connectors.sinks.discard import DiscardSink
from runtime.connectors.sources.sequence import SequenceSource
from runtime.core.ids import OperatorId
from runtime.dataflow import Dataflow
from runtime.pipelines import Pipeline, PipelineContext


class Params(msgspec.Struct):
    """`how`: what is wrong."""

    how: Literal["duplicate-uid", "parallelism", "no-sink", "cycle", "open-loop", "endless", "nothing"]


def same(batch: Any) -> Any:
    return batch


def build(params: Params, _: PipelineContext) -> Dataflow:
    flow = Dataflow("bad")
    numbers = flow.source("numbers", SequenceSource(rows=None if params.how == "endless" else 10))
    if params.how == "parallelism":
        numbers = numbers.map_batches("narrow", same, parallelism=-1)
    if params.how == "duplicate-uid":
        numbers = numbers.map_batches("numbers", same)
    if params.how == "open-loop":
        numbers = numbers.iterate("loop")
    steps = numbers.map_batches("one", same)
    last = steps.map_batches("two", same)
    if params.how == "cycle":
        flow._connect(last, OperatorId("one"))
    if params.how != "no-sink":
        last.sink("out", DiscardSink())
    return flow


PIPELINE = Pipeline(name="bad", description="Refused.", params=Params, build=build)
