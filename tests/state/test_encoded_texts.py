"""Texts that are dictionary codes inside a slot have the declared type everywhere else."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from runtime.state.encoded_texts import (
    ByDictionary,
    codes_of,
    declared_schema,
    decode,
    encoded_columns,
    encoded_field,
)
from runtime.state.index.hashing import key_groups
from tests.encoded_texts import batches, encoded, plain


@given(batches("text"))
def test_decoded_columns_are_plain_texts(batch: pa.RecordBatch) -> None:
    expected = plain(batch, "text")
    assert decode(batch).equals(expected)
    assert decode(batch).schema.equals(expected.schema, check_metadata=True)
    assert declared_schema(batch.schema).equals(expected.schema, check_metadata=True)
    assert decode(batch, ["row"]).schema.equals(batch.schema, check_metadata=True)


def test_decoding_leaves_dictionaries_of_the_author_and_the_metadata_of_fields() -> None:
    dictionary = pa.array(["x"]).dictionary_encode()
    field = pa.field("text", pa.string(), nullable=False, metadata={"unit": "m"})
    schema = pa.schema([encoded_field(field, dictionary.type), pa.field("own", dictionary.type)], {"by": "author"})
    batch = pa.record_batch([dictionary, dictionary], schema=schema)
    assert encoded_columns(schema) == ["text"]
    result = decode(batch).schema
    assert result.equals(pa.schema([field, pa.field("own", dictionary.type)], {"by": "author"}), check_metadata=True)


def test_arrow_keeps_the_mark_of_rows_that_are_taken_filtered_and_joined() -> None:
    batch = encoded("text", ["a", "b"], [0, 1, None])
    for result in (
        batch.take(pa.array([1])),
        batch.filter(pa.array([True, False, True])),
        batch.select([0]),
        pa.concat_batches([batch, encoded("text", ["c"], [0])]),
    ):
        assert encoded_columns(result.schema) == ["text"]


@given(st.lists(batches("text"), max_size=12))
def test_a_function_of_dictionary_values_is_that_of_the_rows(batches: list[pa.RecordBatch]) -> None:
    """Also if dictionaries alternate, as those of row groups do."""
    calls: list[int] = []

    def lengths(values: pa.Array) -> np.ndarray:
        calls.append(len(values))
        return np.array([-1 if value is None else len(value) for value in values.to_pylist()], dtype=np.int64)

    function = ByDictionary(lengths)
    for batch in [*batches, *batches[-3:]]:
        assert function.of_rows(batch["text"]).tolist() == lengths(plain(batch, "text")["text"]).tolist()
    calls.clear()
    if batches:
        function.of_codes(batches[-1]["text"])
    assert calls == [], "a dictionary of late is known"


def test_a_code_of_null_may_exceed_the_type_of_the_codes() -> None:
    column = encoded("text", [str(number) for number in range(128)], [127, None], pa.int8())["text"]
    assert codes_of(column).tolist() == [127, 128]


@given(batches("text"))
def test_the_key_group_is_that_of_the_text(batch: pa.RecordBatch) -> None:
    assert key_groups(batch, ["text"], 128).tolist() == key_groups(plain(batch, "text"), ["text"], 128).tolist()
