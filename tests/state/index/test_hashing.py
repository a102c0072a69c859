"""The key hash: equal for equal values in any encoding, pinned by golden values, in agreement with the core."""

import datetime as dt
import hashlib
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.core.job.key_groups import key_group_of
from runtime.kernels.hash_constants import NULL_HASH
from runtime.state.index.hashing import hash_column, hash_columns, key_groups, key_groups_of_hashes, mix

INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()]


def hashes(column: pa.Array) -> list[int]:
    return [int(value) for value in hash_column(column)]


@pytest.mark.parametrize(
    ("column", "golden"),
    [
        (pa.array([0, 1, -1, 2**63 - 1]), [0, 12994781566227106604, 7256831767414464289, 12373989555017149930]),
        (pa.array([1.0, -0.5, math.nan]), [12581064913290441394, 4496261395320911803, 16325646915251551109]),
        (pa.array([False, True]), [0, 12994781566227106604]),
        (pa.array(["", "a", "weirweir", "a barrier across a stream"]),
         [0, 17320181700703342355, 6132984293558388586, 12669805772628250586]),
        (pa.array(["x" * 65]), [3947904110462928320]),
        (pa.array([dt.date(2013, 1, 1)]), [505090336380476341]),
        (pa.array([Decimal("1.50")], pa.decimal128(5, 2)), [17151607562356299674]),
        (pa.array([None], pa.int64()), [int(NULL_HASH)]),
    ],
)  # fmt: skip
def test_the_hash_is_part_of_the_checkpoint_format_and_never_changes(column: pa.Array, golden: list[int]) -> None:
    """S3-12."""
    assert hashes(column) == golden


def test_several_columns_are_combined_in_order() -> None:
    left, right = pa.array(["a", "b"]), pa.array(["b", "a"])
    assert [int(h) for h in hash_columns([left, right])] == [16554590585821379271, 4453185110627608140]
    assert hash_columns([left, right])[0] != hash_columns([right, left])[0]


def reference_mix(value: int) -> int:
    """MurmurHash3's finaliser, written down a second time."""
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD % 2**64
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 % 2**64
    return value ^ value >> 33


def reference_text(value: bytes) -> int:
    if len(value) > 64:
        return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")
    digest = reference_mix(len(value))
    for start in range(0, len(value), 8):
        digest = reference_mix(digest ^ int.from_bytes(value[start : start + 8], "little"))
    return digest


@given(st.lists(st.binary(max_size=80), max_size=20), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_the_vectorised_hash_is_the_one_that_is_documented(texts: list[bytes], integers: list[int]) -> None:
    assert hashes(pa.array(texts, pa.binary())) == [reference_text(value) for value in texts]
    assert hashes(pa.array(integers, pa.int64())) == [reference_mix(value % 2**64) for value in integers]


@given(st.integers(-(2**63), 2**64 - 1))
def test_an_integer_hashes_alike_in_every_type_that_holds_it(value: int) -> None:
    hashes = {h for kind in INTEGERS for h in _hashes_if_it_fits(value, kind)}
    assert len(hashes) == 1


def _hashes_if_it_fits(value: int, kind: Any) -> list[int]:
    try:
        return hashes(pa.array([value], kind))
    except (OverflowError, pa.ArrowInvalid):
        return []


@given(st.lists(st.one_of(st.none(), st.text(max_size=90)), max_size=20), st.integers(0, 5))
def test_text_hashes_alike_in_every_encoding_and_at_every_offset(values: list[str | None], cut: int) -> None:
    plain = pa.array(values, pa.string())
    expected = hashes(plain)
    for kind in TEXTS:
        assert hashes(plain.cast(pa.binary()).cast(kind) if "binary" in str(kind) else plain.cast(kind)) == expected
    assert hashes(plain.dictionary_encode()) == expected
    assert hashes(plain.dictionary_encode(null_encoding="encode")) == expected
    assert hashes(plain.slice(cut)) == expected[cut:]


@given(st.lists(st.one_of(st.none(), st.binary(max_size=80)), max_size=20))
def test_a_value_hashes_alike_whatever_stands_beside_it(values: list[bytes | None]) -> None:
    together = hashes(pa.array(values, pa.binary()))
    assert together == [hashes(pa.array([value], pa.binary()))[0] for value in values]


@given(st.lists(st.text(max_size=70), min_size=2, max_size=60, unique=True))
def test_different_texts_do_not_collide_in_practice(values: list[str]) -> None:
    assert len(set(hashes(pa.array(values)))) == len(values)


def test_floats_that_are_equal_hash_alike() -> None:
    doubles = hashes(pa.array([0.0, 1.5, math.nan]))
    assert hashes(pa.array([-0.0, 1.5, -math.nan])) == doubles
    assert hashes(pa.array(np.array([0.0, 1.5, math.nan], dtype=np.float32))) == doubles
    assert hashes(pa.array(np.array([0.0, 1.5, math.nan], dtype=np.float16))) == doubles


def test_a_dictionary_with_a_small_index_type_may_be_full_and_hold_nulls() -> None:
    values = [str(number) for number in range(128)]
    column = pa.DictionaryArray.from_arrays(pa.array([*range(128), None], pa.int8()), pa.array(values))
    assert hashes(column) == [*hashes(pa.array(values)), int(NULL_HASH)]


@pytest.mark.parametrize("max_parallelism", [1, 7, 100, 128, 32_768])
def test_key_groups_are_those_of_the_core(max_parallelism: int) -> None:
    batch = pa.RecordBatch.from_pydict({"name": [f"flight {n}" for n in range(500)], "v": list(range(500))})
    expected = [key_group_of(int(h), max_parallelism) for h in hash_columns([batch["name"], batch["v"]])]
    assert key_groups(batch, ["name", "v"], max_parallelism).tolist() == expected


def test_keys_spread_evenly_over_the_key_groups() -> None:
    for column in (pa.array(range(100_000)), pa.array([f"AA{n}" for n in range(100_000)])):
        sizes = np.bincount(key_groups_of_hashes(hash_column(column), 128), minlength=128)
        assert sizes.min() > 600
        assert sizes.max() < 970


@pytest.mark.parametrize("column", [pa.array([[1]]), pa.array([{"a": 1}])])
def test_a_type_that_cannot_be_a_key_is_named(column: pa.Array) -> None:
    with pytest.raises(TypeError, match="cannot be a key"):
        hash_column(column)


@pytest.mark.parametrize("count", [0, 1, 4095, 4096, 4097, 20_000])
def test_a_hash_does_not_depend_on_the_rows_around_it(count: int) -> None:
    values = np.random.default_rng(count).integers(0, 2**64, count, dtype=np.uint64)
    before = values.copy()
    alone = [int(mix(values[row : row + 1])[0]) for row in range(count)]
    assert mix(values).tolist() == alone
    assert (values == before).all()
