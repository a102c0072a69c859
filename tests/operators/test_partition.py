"""Hash partitioning: every row goes to exactly the subtask that the core says, in its order."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from runtime.core.keygroups import key_group_of, owner_of
from runtime.operators.partition import by_key_group
from runtime.state.hashing import hash_columns

KEYS = st.lists(st.tuples(st.none() | st.text(max_size=4), st.integers(-5, 5)), max_size=60)


@given(KEYS, st.integers(1, 40), st.data())
def test_every_row_goes_where_the_core_says_and_keeps_its_place(
    keys: list[tuple[str | None, int]], max_parallelism: int, data: st.DataObject
) -> None:
    parallelism = data.draw(st.integers(1, max_parallelism))
    names, numbers = [name for name, _ in keys], [number for _, number in keys]
    columns = [pa.array(names, pa.string()), pa.array(numbers, pa.int32()), pa.array(range(len(keys)), pa.int64())]
    batch = pa.RecordBatch.from_arrays(columns, names=["name", "number", "row"])
    hashes = hash_columns(columns[:2])
    expected: list[list[int]] = [[] for _ in range(parallelism)]
    for row, key_hash in enumerate(hashes.tolist()):
        expected[owner_of(key_group_of(key_hash, max_parallelism), max_parallelism, parallelism)].append(row)
    dealt = by_key_group(batch, ["name", "number"], max_parallelism, parallelism)
    assert [[] if part is None else part["row"].to_pylist() for part in dealt] == expected
    assert all(part is None or part.schema.equals(batch.schema) for part in dealt)


def test_a_batch_of_one_owner_is_handed_on_as_it_is() -> None:
    batch = pa.RecordBatch.from_pydict({"k": ["same"] * 10})
    dealt = by_key_group(batch, ["k"], 128, 4)
    assert [part is batch for part in dealt].count(True) == 1
    assert [part is None for part in dealt].count(True) == 3
