"""Batches whose columns become nullable: the same values in the wanted schema, whatever the type and the slice."""

from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest

from runtime.state.encodings import NullableRows, nullable_schema, with_schema

ROWS: Final = 18
NUMBER: Final = pa.field("item", pa.int64(), nullable=False)
TEXTS: Final = pa.list_(pa.field("item", pa.string(), nullable=False))
PAIR: Final = pa.struct([pa.field("x", pa.int64(), nullable=False), pa.field("y", TEXTS, nullable=False)])
COLUMNS: Final[dict[str, Any]] = {
    "bool": pa.array([number % 3 == 0 for number in range(ROWS)]),
    "string": pa.array([f"t{number}" for number in range(ROWS)]),
    "binary": pa.array([b"x" * number for number in range(ROWS)]),
    "decimal": pa.array([Decimal(number) for number in range(ROWS)], pa.decimal128(10, 2)),
    "timestamp": pa.array(range(ROWS), pa.timestamp("us", "UTC")),
    "list": pa.array([[number, number + 1] for number in range(ROWS)], pa.list_(NUMBER)),
    "large_list": pa.array([[number] * (number % 3) for number in range(ROWS)], pa.large_list(NUMBER)),
    "fixed_size_list": pa.array([[number, number] for number in range(ROWS)], pa.list_(NUMBER, 2)),
    "map": pa.array([[("a", number)] for number in range(ROWS)], pa.map_(pa.string(), NUMBER.with_name("value"))),
    "struct": pa.array([{"x": number, "y": [str(number)]} for number in range(ROWS)], PAIR),
    "dictionary": pa.array([f"t{number % 3}" for number in range(ROWS)]).dictionary_encode(),
    "uuid": pa.array([bytes(16)] * ROWS, pa.uuid()),
    "nulls": pa.array([None if number % 2 else number for number in range(ROWS)], pa.int64()),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize(("start", "rows"), [(0, ROWS), (3, 9), (1, 1)])
def test_nullable_rows_have_the_same_values_in_the_nullable_schema(name: str, start: int, rows: int) -> None:
    column = COLUMNS[name]
    fields = [pa.field("first", pa.int64(), nullable=False), pa.field("column", column.type, nullable=name == "nulls")]
    numbers = pa.array(range(ROWS + 2)).slice(2)
    source = pa.RecordBatch.from_arrays([numbers, column], schema=pa.schema(fields, metadata={"by": "pandas"}))
    batch = source.slice(start, rows)
    result = NullableRows(batch.schema).of(batch)
    result.validate(full=True)
    schema = nullable_schema(batch.schema)
    assert result.schema.equals(schema, check_metadata=True)
    assert result.equals(with_schema(batch, schema))
    assert result.to_pylist() == batch.to_pylist()
    assert result.nbytes == batch.nbytes


def test_rows_that_are_nullable_stay_the_same_object() -> None:
    batch = pa.record_batch({"n": [1]})
    assert NullableRows(batch.schema).of(batch) is batch
