"""Columns that steps read: which columns of a source or an edge some later step uses.

A step that does not declare its columns reads all of them, and so do sinks and functions of authors. Unused columns are
left out by sources that can (`ports.LeavesOutColumns`) and before rows are partitioned and sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from runtime.core.job.graph import EdgeSpec
from runtime.core.job.ids import OperatorId
from runtime.operators.aggregates import Aggregate
from runtime.operators.expressions import columns_named_in


@dataclass(frozen=True, slots=True)
class ColumnUse:
    """The columns that a step reads from an input, in addition to the keys of the edge.

    Args:
        reads: the columns that the step itself reads.
        forwards: the step also passes on the columns that later steps use.
    """

    reads: frozenset[str]
    forwards: bool = False


@dataclass(frozen=True)
class UsedColumns:
    """The columns used of a job. `edges`: in order, with the columns that the step reads; None: all."""

    edges: Sequence[tuple[EdgeSpec, ColumnUse | None]]
    _outputs: dict[OperatorId, frozenset[str] | None] = field(default_factory=dict)

    def of_edge(self, number: int) -> frozenset[str] | None:
        """The columns used of an edge; None: all."""
        edge, use = self.edges[number]
        if use is None or edge.feedback:
            return None
        columns = use.reads | set(edge.keys)
        if not use.forwards:
            return columns
        later = self.of_output(edge.target)
        return None if later is None else columns | later

    def of_output(self, uid: OperatorId) -> frozenset[str] | None:
        """The columns that the readers of an operator use; None: all.

        The edges that forward columns form no circle, since a loop's head uses all columns.
        """
        if uid not in self._outputs:
            used = [self.of_edge(number) for number, (edge, _) in enumerate(self.edges) if edge.source == uid]
            sets = [names for names in used if names is not None]
            self._outputs[uid] = frozenset().union(*sets) if len(sets) == len(used) > 0 else None
        return self._outputs[uid]


def columns_of_aggregates(*names: str, aggregates: Mapping[str, Aggregate]) -> ColumnUse | None:
    """The columns of aggregates, and `names`; None: an aggregate of an author does not declare its column."""
    columns = [aggregate.columns() for aggregate in aggregates.values()]
    if any(part is None for part in columns):
        return None
    return ColumnUse(frozenset(names).union(*(part for part in columns if part is not None)))


def columns_of_expressions(
    schema: pa.Schema | None, expressions: Sequence[pc.Expression], *, forwards: bool
) -> ColumnUse | None:
    """The columns that expressions read from a stream with the columns `schema`; None: they are not known."""
    if schema is None:
        return None
    names = frozenset(name for each in expressions for name in columns_named_in(each, schema.names))
    return ColumnUse(names, forwards)
