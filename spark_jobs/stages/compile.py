"""Compiling a version: parameters → the graph that the console stores, checks and draws.

It starts nothing and reads no data; whatever cannot run is refused here, by field. Spark is asked only for the columns
of DataFrames that feed sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.core.settings import ExecutionMode
from runtime.dataflow import Dataflow
from runtime.pipelines import PipelineContext, parameter_schema, pipeline, registry
from runtime.ports import HasStandingStage
from spark_jobs.batch.refusals import check_batch
from spark_jobs.sources import table as tables
from spark_jobs.sources.columns import learn_columns


def describe() -> list[dict[str, Any]]:
    """Every installed pipeline with the JSON schema of its parameters and its queries, by name.

    A broken one has an error instead.
    """
    found = registry()
    whole = [
        {
            "name": name,
            "description": one.description,
            "schema": parameter_schema(one),
            "queries": dict(one.queries),
            "error": "",
        }
        for name, one in found.pipelines.items()
    ]
    nothing = {"description": "", "schema": {}, "queries": {}}
    broken = [{"name": name, **nothing, "error": why} for name, why in found.broken.items()]
    return sorted(whole + broken, key=lambda one: str(one["name"]))


def compiled(
    name: str,
    raw: Mapping[str, Any],
    context: PipelineContext,
    parallelism: int,
    max_parallelism: int | None,
    mode: ExecutionMode = ExecutionMode.STREAMING,
) -> dict[str, Any]:
    """The graph of pipeline `name`, with the mode that it runs in.

    Raises:
        JobRejected: naming the parameter or operator at fault, in BATCH also one that cannot run there.
    """
    one = pipeline(name)
    flow = one.dataflow(raw, context)
    if learn_columns(flow.sources, context.column_root, name):
        flow = one.dataflow(raw, context)  # again, with the columns
    if max_parallelism is not None:
        flow.max_parallelism = max_parallelism
    resolved = resolved_mode(flow, mode)
    graph = _graph(flow, parallelism, has_stages=resolved is ExecutionMode.STREAMING)
    if resolved is ExecutionMode.BATCH:
        check_batch(flow.compile(parallelism))
    return {"graph": graph | {"mode": resolved}}


def resolved_mode(flow: Dataflow, mode: ExecutionMode) -> ExecutionMode:
    """STREAMING or BATCH."""
    if mode is not ExecutionMode.AUTOMATIC:
        return mode
    bounded = all(source.bounded for source in flow.sources.values())
    return ExecutionMode.BATCH if bounded else ExecutionMode.STREAMING


def _graph(flow: Dataflow, parallelism: int, *, has_stages: bool) -> dict[str, Any]:
    """What each operator has at the greatest parallelism goes with it: from that follows what it has at any.

    `stage` is the verb of the PySpark stage that stands beside an operator, for those that have one. All tables of a
    run share a stage, which stands beside the first of them: one Spark is enough.
    """
    graph = flow.compile(parallelism).graph.to_json()
    widest = flow.compile(flow.max_parallelism).graph.by_uid
    ends = {**flow.sources, **flow.sinks}
    has_tables = False
    for operator in graph["operators"]:
        operator["most"] = widest[operator["uid"]].parallelism
        end = ends.get(operator["uid"])
        if not has_stages or not isinstance(end, HasStandingStage) or (has_tables and end.stage == tables.STAGE):
            continue
        operator["stage"] = end.stage
        has_tables = has_tables or end.stage == tables.STAGE
    return graph
