"""The graph of a real flow as the compile stage returns it."""

from typing import Any

import weir
from spark_jobs.stages.compile import graph_with_stages
from tests.console import graphs


def compiled_graph(flow: weir.Dataflow, parallelism: int) -> dict[str, Any]:
    return {**graph_with_stages(flow, parallelism, has_stages=False), "code": graphs.CODE}
