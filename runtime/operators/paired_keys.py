"""The key columns of two inputs of an operator: equal keys must have the same key group on both sides."""

from collections.abc import Sequence

import pyarrow as pa

from runtime.errors import JobRejected
from runtime.state.index.key_codec import common_key_type
from runtime.state.index.key_types import check_keys


def check_key_pairs(
    uid: str, left: Sequence[str], right: Sequence[str], left_columns: pa.Schema | None, right_columns: pa.Schema | None
) -> None:
    """Checks the keys of operator `uid`, pair by pair. Columns are None while they are unknown.

    Raises:
        JobRejected: the numbers of keys differ, a column is missing, or two types have different hashes.
    """
    if len(left) != len(right):
        detail = f"its inputs need the same number of keys, not {', '.join(left)} and {', '.join(right)}"
        raise JobRejected("bad-keys", uid, detail)
    if left_columns is None or right_columns is None:
        return
    check_keys(left_columns, left, uid)
    check_keys(right_columns, right, uid)
    for first, second in zip(left, right, strict=True):
        first_type, second_type = left_columns.field(first).type, right_columns.field(second).type
        if common_key_type(first_type, second_type) is None:
            detail = (
                f"key {first!r} of its first input is {first_type}, key {second!r} of its second input is {second_type}"
            )
            raise JobRejected("bad-keys", uid, f"{detail}: rows would never meet; cast a column with with_columns")
