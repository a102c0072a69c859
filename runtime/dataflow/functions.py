"""Steps that run code of an author: a row-wise function, or an operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from runtime.operators.arguments import check_factory, check_schema
from runtime.operators.output_tag import OutputTag, check_tags
from runtime.ports import Operator

if TYPE_CHECKING:
    from runtime.dataflow.inputs import StepInput
    from runtime.dataflow.stream import Stream

F = TypeVar("F")


def add_function(
    uid: str,
    kind: type,
    function_factory: Callable[[], F],
    create: Callable[[F, tuple[OutputTag, ...]], Operator],
    schema: pa.Schema,
    side_outputs: Sequence[OutputTag],
    inputs: Sequence[StepInput],
    parallelism: int | None,
) -> Stream:
    """Adds a step that runs a row-wise function.

    Args:
        kind: base class of the functions.
        create: makes the operator of a subtask from its function and the side outputs.

    Raises:
        JobRejected: an argument is invalid.
    """
    check_factory(uid, function_factory, kind, "" if inputs[0].keys else ": a keyed function needs key_by")
    check_schema(uid, schema)
    tags = check_tags(uid, side_outputs)
    return inputs[0].stream.flow._add_operator(
        uid, lambda: create(function_factory(), tags), inputs, parallelism, columns=schema, side_outputs=tags
    )


def add_transform(
    uid: str,
    operator_factory: Callable[[], Operator],
    schema: pa.Schema | None,
    side_outputs: Sequence[OutputTag],
    source: StepInput,
    parallelism: int | None,
) -> Stream:
    """Adds a step that runs an author's operator. Raises JobRejected: an argument is invalid."""
    check_factory(uid, operator_factory, Operator, argument="operator_factory")
    if schema is not None:
        check_schema(uid, schema)
    flow, tags = source.stream.flow, check_tags(uid, side_outputs)
    return flow._with_columns(
        flow._add_operator(uid, operator_factory, [source], parallelism, side_outputs=tags), schema
    )
