"""Compiles a version: parameters → the graph that the console stores, checks and draws.

Compilation starts no job and reads no data. A job that cannot run is refused here, with the field at fault. Spark
starts only to derive the columns of `from_spark_stream` sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from runtime.core.job.settings import ExecutionMode
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.code_identity import code_identity
from runtime.dataflow.pipelines import PipelineContext, parameter_schema, pipeline, registry
from runtime.errors import JobRejected
from runtime.ports import HasStandingStage
from spark_jobs.batch.late_rows import may_refuse_frame
from spark_jobs.batch.refusals import check_batch
from spark_jobs.sources.columns import derive_columns
from spark_jobs.sources.table import SparkTable


def describe_pipelines() -> list[dict[str, Any]]:
    """All installed pipelines, sorted by name, with their queries and the JSON schema of their parameters.

    A pipeline that cannot be loaded has an error instead.
    """
    catalog = registry()
    descriptions = [
        {
            "name": name,
            "description": entry.description,
            "schema": parameter_schema(entry),
            "queries": dict(entry.queries),
            "error": "",
        }
        for name, entry in catalog.pipelines.items()
    ]
    nothing = {"description": "", "schema": {}, "queries": {}}
    broken = [{"name": name, **nothing, "error": why} for name, why in catalog.broken.items()]
    return sorted(descriptions + broken, key=lambda entry: str(entry["name"]))


def compile_graph(
    name: str,
    raw: Mapping[str, Any],
    context: PipelineContext,
    parallelism: int,
    max_parallelism: int | None,
    mode: ExecutionMode = ExecutionMode.STREAMING,
) -> dict[str, Any]:
    """The graph of pipeline `name`, with its resolved mode and the identity of its code.

    Raises:
        JobRejected: the job cannot run, or cannot run in BATCH; the parameter or operator is named.
    """
    definition = pipeline(name)
    flow = definition.dataflow(raw, context)
    if derive_columns(flow.sources, context.column_root, name):
        flow = definition.dataflow(raw, context)  # again, now with the columns
    if max_parallelism is not None:
        flow.max_parallelism = max_parallelism
    resolved = resolve_mode(flow, mode, parallelism)
    graph = graph_with_stages(flow, parallelism, has_stages=resolved is ExecutionMode.STREAMING)
    if resolved is ExecutionMode.BATCH:
        check_batch(flow.compile(parallelism))
    code = code_identity(name, flow, graph["max_parallelism"])
    return {"graph": graph | {"mode": resolved, "code": msgspec.to_builtins(code)}}


def resolve_mode(flow: Dataflow, mode: ExecutionMode, parallelism: int) -> ExecutionMode:
    """The mode with AUTOMATIC resolved to BATCH where the job can run in BATCH, otherwise to STREAMING.

    A DataFrame with event time is often not in its order. STREAMING drops its late rows, BATCH refuses them as it runs.
    """
    if mode is not ExecutionMode.AUTOMATIC:
        return mode
    if not all(source.bounded for source in flow.sources.values()):
        return ExecutionMode.STREAMING
    job = flow.compile(parallelism)
    try:
        check_batch(job)
    except JobRejected:
        return ExecutionMode.STREAMING
    return ExecutionMode.STREAMING if may_refuse_frame(job) else ExecutionMode.BATCH


def graph_with_stages(flow: Dataflow, parallelism: int, *, has_stages: bool) -> dict[str, Any]:
    """The graph with two additions per operator: `most`, its parallelism at max parallelism, and `stage`.

    The console derives from `most` the parallelism at any job parallelism. `stage` is the verb of the operator's
    standing PySpark stage, if it has one. All tables of a run share a stage, which belongs to the first table: so they
    share a Spark session.
    """
    compiled = flow.compile(parallelism).graph
    graph = compiled.to_json()
    widest = flow.compile(compiled.max_parallelism).graph.by_uid
    ends = {**flow.sources, **flow.sinks}
    has_tables = False
    for operator in graph["operators"]:
        operator["most"] = widest[operator["uid"]].parallelism
        end = ends.get(operator["uid"])
        if not has_stages or not isinstance(end, HasStandingStage) or (has_tables and isinstance(end, SparkTable)):
            continue
        operator["stage"] = end.stage
        has_tables = has_tables or isinstance(end, SparkTable)
    return graph
