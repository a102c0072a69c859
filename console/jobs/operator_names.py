"""Names of operators in sentences, as the graph of the job page shows them."""

from collections.abc import Mapping
from typing import Any

from runtime.core.job import graph as job_graph


def operator_names(graph: Mapping[str, Any] | None) -> dict[str, str]:
    """By uid: the name of each operator, with the uid if another operator has the same name."""
    operators = (graph or {}).get("operators", ())
    return job_graph.operator_names((operator["uid"], operator["name"]) for operator in operators)


def quoted(name: str) -> str:
    """A name between backticks, which pages show as code. Backticks within it become apostrophes."""
    inner = name.replace("`", "'")
    return f"`{inner}`"
