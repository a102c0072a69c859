"""Late rows: their counter, and the columns of a side output for them."""

from typing import Final

import pyarrow as pa

from runtime.errors import JobRejected
from runtime.operators.output_tag import OutputTag
from runtime.ports import OperatorContext
from runtime.state.encodings import schema_without_views

LATE_RECORDS_COUNTER: Final = "late_records"  #: see also `runtime.run_store.late_rows`


def count_late_rows(context: OperatorContext, rows: int, *, has_output: bool) -> None:
    """Counts late rows. `has_output`: they go to a side output; otherwise they are dropped.

    Raises:
        JobRejected: rows would be dropped, and no source states that its rows are out of order.
    """
    context.count(LATE_RECORDS_COUNTER, rows)
    if rows and context.refuses_late_rows and not has_output:
        detail = (
            f"{rows} rows are late and would be missing in the result: a bounded source is out of order, or a step has "
            "moved times back. Give the source max_disorder_ms, by which rows may follow rows with a later event time, "
            "or this step late_to"
        )
        raise JobRejected("late-rows", context.uid, detail)


def late_columns_error(tag: OutputTag, columns: pa.Schema) -> JobRejected | None:
    """The error for a side output for late rows whose columns are not those of the input; None if they are.

    Nullability and views make no difference: channels carry no views.
    """
    row_columns, declared = (
        ", ".join(f"{item.name}: {item.type}" for item in schema_without_views(each)) for each in (columns, tag.schema)
    )
    if row_columns == declared:
        return None
    detail = f"late rows have the columns {row_columns}, but {tag.name!r} declares {declared}"
    return JobRejected("bad-late-to", "late_to", detail)


class LateColumns:
    """Checks the columns of late rows at the first row, before any row is late. `tag`: their side output, if any."""

    def __init__(self, tag: OutputTag | None) -> None:
        self._tag = tag
        self._checked: pa.Schema | None = None

    def check(self, schema: pa.Schema) -> None:
        """Raises JobRejected if late rows would not have the declared columns."""
        if self._tag is None or schema is self._checked:
            return
        if (error := late_columns_error(self._tag, schema)) is not None:
            raise error
        self._checked = schema
