"""Partitioning: every row goes to exactly the subtask that the core, or the author's function, says, in its order."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.core.job.key_groups import key_group_of, key_group_owner
from runtime.errors import DataRejected, JobRejected, WeirError
from runtime.operators.partition import partition_by_function, partition_by_key_group
from runtime.state.index.hashing import hash_columns

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
        expected[key_group_owner(key_group_of(key_hash, max_parallelism), max_parallelism, parallelism)].append(row)
    dealt = partition_by_key_group(batch, ["name", "number"], max_parallelism, parallelism)
    assert [[] if part is None else part["row"].to_pylist() for part in dealt] == expected
    assert all(part is None or part.schema.equals(batch.schema) for part in dealt)


@pytest.mark.parametrize("parallelism", [2, 8, 9, 40])
def test_marking_and_sorting_deal_alike(parallelism: int) -> None:
    random = np.random.default_rng(parallelism)
    batch = pa.record_batch({"k": random.integers(0, 100, 10_000), "row": np.arange(10_000)})
    owners = [
        key_group_owner(key_group_of(key_hash, 64), 64, parallelism) for key_hash in hash_columns([batch["k"]]).tolist()
    ]
    expected = [np.flatnonzero(np.array(owners) == target).tolist() for target in range(parallelism)]
    dealt = partition_by_key_group(batch, ["k"], 64, parallelism)
    assert [[] if part is None else part["row"].to_pylist() for part in dealt] == expected


def test_a_batch_of_one_owner_is_handed_on_as_it_is() -> None:
    batch = pa.RecordBatch.from_pydict({"k": ["same"] * 10})
    dealt = partition_by_key_group(batch, ["k"], 128, 4)
    assert [part is batch for part in dealt].count(True) == 1
    assert [part is None for part in dealt].count(True) == 3


# ---------------------------------------------------------------- by a function of the author's


@given(st.lists(st.integers(0, 99), max_size=60), st.integers(1, 9))
def test_every_row_goes_where_the_function_says_and_keeps_its_place(numbers: list[int], parallelism: int) -> None:
    """S3-30: the function is given its columns and the number of targets."""

    def by_remainder(rows: pa.RecordBatch, targets: int) -> Any:
        assert rows.schema.names == ["number"]
        return rows["number"].to_numpy() % targets

    batch = pa.record_batch({"row": pa.array(range(len(numbers)), pa.int64()), "number": pa.array(numbers, pa.int64())})
    dealt = partition_by_function(batch, ["number"], by_remainder, "next", parallelism)
    expected = [[row for row, number in enumerate(numbers) if number % parallelism == t] for t in range(parallelism)]
    assert [[] if part is None else part["row"].to_pylist() for part in dealt] == expected
    assert all(part is None or part.schema.equals(batch.schema) for part in dealt)


TEN = pa.record_batch({"k": pa.array(range(10), pa.int64())})


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint32()])
def test_a_function_may_return_arrow(kind: Any) -> None:
    dealt = partition_by_function(TEN, ["k"], lambda rows, targets: pc.bit_wise_and(rows["k"], 1).cast(kind), "next", 2)
    assert [part["k"].to_pylist() for part in dealt if part is not None] == [[0, 2, 4, 6, 8], [1, 3, 5, 7, 9]]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([0, 1, 2, 3, 0, 0, 0, 0, 0, 0], "ValueError: it returned 3 for {'k': 3}; there are subtasks 0 to 2"),
        ([0, -1, 0, 0, 0, 0, 0, 0, 0, 0], "ValueError: it returned -1 for {'k': 1}; there are subtasks 0 to 2"),
        ([2**40] * 10, "ValueError: it returned 1099511627776 for {'k': 0}; there are subtasks 0 to 2"),
        ([0.5] * 10, "TypeError: it must return one integer for each of 10 rows, not 10 of float64"),
        ([0] * 9, "TypeError: it must return one integer for each of 10 rows, not 9 of int64"),
        (1, "TypeError: it must return one integer for each of 10 rows, not one of int64"),
    ],
)
def test_a_function_that_names_no_subtask_is_refused(returned: Any, message: str) -> None:
    """S3-30: the error names the operator and the value."""
    with pytest.raises(WeirError) as error:
        partition_by_function(TEN, ["k"], lambda rows, targets: np.asarray(returned), "next", 3)
    assert str(error.value) == f"the partitioner before operator 'next': {message}"


def test_a_column_that_is_not_there_is_named() -> None:
    """No retry can help, unlike after an error of the function."""
    with pytest.raises(JobRejected, match=r"^v: there is no such column for the partitioner before operator 'next'"):
        partition_by_function(TEN, ["v"], lambda rows, targets: rows["v"], "next", 3)


@pytest.mark.parametrize("refusal", [DataRejected("row 3 has no key"), JobRejected("bad", "k", "never")])
def test_a_function_that_refuses_its_rows_says_so_itself(refusal: WeirError) -> None:
    """Wrapped, the job would be tried again and again."""

    def refuse(rows: pa.RecordBatch, targets: int) -> npt.ArrayLike:
        raise refusal

    with pytest.raises(type(refusal)) as raised:
        partition_by_function(TEN, ["k"], refuse, "next", 3)
    assert raised.value is refusal
