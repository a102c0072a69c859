"""Compiling a version: parameters → the graph that the console stores, checks and draws.

It starts nothing and reads no data; whatever cannot run is refused here, by field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.dataflow import Dataflow
from runtime.pipelines import PipelineContext, parameter_schema, pipeline, registry


def describe() -> list[dict[str, Any]]:
    """Every installed pipeline with the JSON schema of its parameters, by name; a broken one has an error instead."""
    found = registry()
    whole = [
        {"name": name, "description": one.description, "schema": parameter_schema(one), "error": ""}
        for name, one in found.pipelines.items()
    ]
    broken = [{"name": name, "description": "", "schema": {}, "error": why} for name, why in found.broken.items()]
    return sorted(whole + broken, key=lambda one: str(one["name"]))


def compiled(
    name: str, raw: Mapping[str, Any], context: PipelineContext, parallelism: int, max_parallelism: int | None
) -> dict[str, Any]:
    """The graph of pipeline `name` and the bounded inputs that it needs.

    Raises:
        JobRejected: naming the parameter or operator at fault.
    """
    one = pipeline(name)
    flow = one.dataflow(raw, context)
    if max_parallelism is not None:
        flow.max_parallelism = max_parallelism
    return {"graph": _graph(flow, parallelism), "inputs": sorted(one.inputs)}


def _graph(flow: Dataflow, parallelism: int) -> dict[str, Any]:
    """What each operator has at the greatest parallelism goes with it: from that follows what it has at any."""
    graph = flow.compile(parallelism).graph.to_json()
    widest = flow.compile(flow.max_parallelism).graph.by_uid
    for operator in graph["operators"]:
        operator["most"] = widest[operator["uid"]].parallelism
    return graph
