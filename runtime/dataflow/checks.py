"""Checks of a step that is being added. Each error names the step."""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import pyarrow as pa

from runtime.errors import JobRejected
from runtime.operators.arguments import argument_error, check_column
from runtime.operators.column_difference import column_difference, columns_of
from runtime.operators.event_time import check_time_column
from runtime.operators.late_rows import late_columns_error
from runtime.operators.output_tag import OutputTag, check_tags
from runtime.ports import ErrorPolicy, Operator
from runtime.state.encodings import nullable_schema, schema_without_views

T = TypeVar("T")

MAX_PER_MINUTE: Final = 100_000  #: dead letters of a subtask; the time of each is in every checkpoint


def validate_factory(uid: str, make: Callable[[], Operator]) -> Callable[[], Operator]:
    """Calls `make` once, so that bad arguments fail before the start, and returns it. Only for code of Weir itself."""
    with_uid_in_errors(uid, make)
    return make


def with_uid_in_errors(uid: str, make: Callable[[], T]) -> T:
    """The result of `make`. If `make` raises JobRejected, the error is raised again with `uid` as its field."""
    try:
        return make()
    except JobRejected as error:
        raise JobRejected(error.code, uid, str(error)) from error


def common_columns(uid: str, columns: Sequence[tuple[str, pa.Schema | None]]) -> pa.Schema | None:
    """The columns of all inputs of step `uid`; None: unknown for all. Raises JobRejected if known columns differ.

    All columns are nullable, since those of any input may be.

    Args:
        columns: by input, whose uid the error names; None: unknown.
    """
    pairs = [(name, schema) for name, schema in columns if schema is not None]
    if not pairs:
        return None
    (first, common), *followers = pairs
    first_columns = columns_of(common)
    for other, schema in followers:
        if list(first_columns.items()) != list((other_columns := columns_of(schema)).items()):
            detail = f"the columns of {other!r} differ from the columns of {first!r}: "
            advice = "; make them equal with select"
            raise JobRejected("wrong-columns", uid, detail + column_difference(first_columns, other_columns) + advice)
    return nullable_schema(common)


def check_time(uid: str, name: object, columns: pa.Schema | None) -> None:
    """Raises JobRejected unless `name` is a column of event times of an input with these `columns`; None: unknown."""
    check_column(uid, "time", name)
    if columns is not None:
        with_uid_in_errors(uid, lambda: check_time_column(schema_without_views(columns), str(name)))


def check_policy(uid: str, policy: object) -> ErrorPolicy:
    """Raises JobRejected unless `policy` is a policy for rows whose code raises."""
    if isinstance(policy, type) or not isinstance(policy, ErrorPolicy):
        raise argument_error(uid, "on_error", f"must be None or weir.SetAside(folder), not {policy!r}")
    limit = policy.max_per_minute
    if type(limit) is not int or not 1 <= limit <= MAX_PER_MINUTE:
        detail = f"needs max_per_minute as a whole number, at least 1 and at most {MAX_PER_MINUTE:,}, not {limit!r}"
        raise argument_error(uid, "on_error", detail)
    return policy


def check_late_columns(uid: str, late: OutputTag, columns: pa.Schema | None) -> None:
    """Raises JobRejected if the columns of a side output for late rows are not those of the input, if known."""
    check_tags(uid, [late])
    if columns is not None and (error := late_columns_error(late, columns)) is not None:
        raise JobRejected(error.code, uid, error.detail)
