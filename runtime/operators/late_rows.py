"""Late rows: their counter, and the columns of a side output for them."""

from typing import Final

import pyarrow as pa

from runtime.errors import JobRejected
from runtime.operators.output_tag import OutputTag
from runtime.state.encodings import without_views

LATE_RECORDS_COUNTER: Final = "late_records"


def late_columns_error(tag: OutputTag, columns: pa.Schema) -> JobRejected | None:
    """The error for a side output for late rows whose columns are not those of the input; None if they are.

    Nullability and views make no difference: channels carry no views.
    """
    own, declared = (
        ", ".join(f"{item.name}: {item.type}" for item in without_views(pa.RecordBatch.from_pylist([], each)).schema)
        for each in (columns, tag.schema)
    )
    if own == declared:
        return None
    detail = f"late rows have the columns {own}, but {tag.name!r} declares {declared}"
    return JobRejected("bad-late-to", "late_to", detail)
