"""Dictionary-encoded text columns in every form that Arrow allows, and the same columns as plain texts."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from runtime.state.encoded_texts import encoded_field

TEXTS = ("view", "click", "a", "", "7")
KINDS = (pa.int8(), pa.int32())


def encoded(name: str, dictionary: Sequence[str | None], codes: Sequence[int | None], kind: Any = KINDS[1]) -> Any:
    """A batch with an encoded column, and `row`: the number of each row."""
    column = pa.DictionaryArray.from_arrays(pa.array(codes, kind), pa.array(dictionary, pa.string()))
    fields = [encoded_field(pa.field(name, pa.string()), column.type), pa.field("row", pa.int64())]
    return pa.record_batch([column, pa.array(range(len(codes)), pa.int64())], schema=pa.schema(fields))


def plain(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """The batch with its column `name` as plain texts, made without Arrow's decoding."""
    texts = pa.array([value.as_py() for value in batch[name]], pa.string())
    number = batch.schema.get_field_index(name)
    return batch.set_column(number, pa.field(name, pa.string()), texts)


@st.composite
def batches(draw: st.DrawFn, name: str) -> pa.RecordBatch:
    """A slice of a batch; its dictionary may have null, repeated and unused values."""
    dictionary = draw(st.lists(st.sampled_from([*TEXTS, None]), max_size=7))
    code = st.none() | st.integers(0, len(dictionary) - 1) if dictionary else st.none()
    codes = draw(st.lists(code, max_size=20))
    start = draw(st.integers(0, len(codes)))
    return encoded(name, dictionary, codes, draw(st.sampled_from(KINDS))).slice(start)
