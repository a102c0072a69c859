"""Interned keys against a dictionary, with the real hash and with one that collides all the time."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.state.index import interned
from runtime.state.index.hashing import text_buffers
from runtime.state.index.interned import UNKNOWN_CODE, InternedCodec
from runtime.state.index.text_table import TextTable

VALUES = st.sampled_from(
    [b"", b"a", b"b", b"ab", b"ba", b"\x00", b"a" * 8, b"a" * 9, b"a" * 64, b"b" * 64, b"a" * 65, b"b" * 65]
)
BATCHES = st.lists(st.tuples(st.booleans(), st.lists(VALUES | st.binary(max_size=70), max_size=12)), max_size=12)


HASH_MASKS = {"hash": 2**64 - 1, "hash of two values": 1 << 63, "hash of one value": 0}


@pytest.fixture(scope="module", params=HASH_MASKS)
def hashed(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interned, "TextTable", lambda: TextTable(HASH_MASKS[request.param]))
        yield


@pytest.mark.usefixtures("hashed")
@given(BATCHES)
def test_every_value_keeps_its_own_code(batches: list[tuple[bool, list[bytes]]]) -> None:
    codec, model = InternedCodec(pa.binary()), dict[bytes, int]()
    for learn, values in batches:
        codes = codec.encode(pa.array(values, pa.binary()), learn).tolist()
        codes_by_value = dict[bytes, int]()
        for value, code in zip(values, codes, strict=True):
            assert codes_by_value.setdefault(value, code) == code
        if learn:
            model.update({value: code for value, code in codes_by_value.items() if value not in model})
        assert codes_by_value == {value: model.get(value, UNKNOWN_CODE) for value in codes_by_value}
    assert len(set(model.values())) == len(model)
    codes_known = np.array(list(model.values()), dtype=np.int64)
    assert codec.decode(codes_known, np.zeros(len(model), dtype=bool)).to_pylist() == list(model)


@pytest.mark.usefixtures("hashed")
@given(st.lists(VALUES, unique=True, min_size=1), st.data())
def test_compaction_keeps_what_is_asked_for(values: list[bytes], data: st.DataObject) -> None:
    codec = InternedCodec(pa.binary())
    codes = codec.encode(pa.array(values, pa.binary()), learn=True)
    rows = data.draw(st.lists(st.sampled_from(range(len(values))), unique=True))
    selection = np.append(codes[rows], UNKNOWN_CODE)
    successor, renumbered = codec.compact(selection)
    assert len(successor) == len(rows)
    assert renumbered[-1] == UNKNOWN_CODE
    decoded = successor.decode(renumbered, np.zeros(len(selection), dtype=bool)).to_pylist()
    assert decoded == [*(values[row] for row in rows), None]


def test_what_was_captured_can_be_decoded_while_new_values_come() -> None:
    codec = InternedCodec(pa.string())
    codes = codec.encode(pa.array([f"first {number}" for number in range(100)]), learn=True)
    before: Any = codec.decode(codes, np.zeros(100, dtype=bool))
    codec.encode(pa.array([f"then {number}" * 20 for number in range(10_000)]), learn=True)
    assert codec.decode(codes, np.zeros(100, dtype=bool)).equals(before)
    assert before.to_pylist() == [f"first {number}" for number in range(100)]


def test_many_values_are_found_again_after_growth_and_at_the_end_of_their_bytes() -> None:
    """Values of 0 to 70 bytes, with zeroes: the last ends where the data of the column end."""
    table, model = TextTable(), dict[bytes, int]()
    random = np.random.default_rng(7)
    for _ in range(6):
        values = [random.integers(0, 3, length, dtype=np.uint8).tobytes() for length in random.integers(0, 70, 3_000)]
        texts = text_buffers(pa.array(values, pa.binary()))
        numbers = table.numbers(texts, learn=True)
        assert numbers.tolist() == [model.setdefault(value, len(model)) for value in values]
        stored = table.arena.values().take(pa.array(numbers)).to_pylist()
        assert stored == values
