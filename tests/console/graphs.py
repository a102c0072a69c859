"""Graphs and their operators as the compile stage returns them."""

from typing import Any, Final

import weir
from spark_jobs.stages.compile import graph_with_stages

#: Code of an unknown package.
CODE: Final = {"package": "", "version": "", "graph": "a"}


def operator(
    uid: str, name: str, role: str, parallelism: int, *, most: int = 128, bounded: bool = False, **more: Any
) -> dict[str, Any]:
    return {
        "uid": uid, "name": name, "role": role, "parallelism": parallelism, "most": most, "bounded": bounded,
        "guarantee": "exactly-once", "commits": role == "sink", "durations": {}, "aggregates": [], "exclusive": False,
        **more,
    }  # fmt: skip


def compiled_graph(flow: weir.Dataflow, parallelism: int) -> dict[str, Any]:
    return {**graph_with_stages(flow, parallelism, has_stages=False), "code": CODE}
