"""The compiled parser of JSON rows against Arrow's, on the same bytes: equal rows or an error of both."""

import json
import math
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.connectors.formats import json_rows
from runtime.connectors.formats.json_rows import ArrowRows, row_parser
from runtime.connectors.kafka.formats import KafkaJson
from tests.example_counts import examples

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("small", pa.int8()),
        pa.field("large", pa.uint64()),
        pa.field("x", pa.float64()),
        pa.field("ok", pa.bool_()),
        pa.field("name", pa.string()),
        pa.field("at", pa.timestamp("ms", "UTC")),
        pa.field("fine", pa.timestamp("ns")),
        pa.field("price", pa.decimal128(12, 2)),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("größe", pa.int32()),
    ]
)
NUMBERS = st.sampled_from(
    ["0", "-0", "7", "-128", "128", "01", "1.5", "1e2", "-", "1.", "9223372036854775808", "-1e400"]
)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
ESCAPES = ["a", "é", "\\n", '\\"', "\\\\", "\\/", "\\t\\r\\b\\f", "\\u00e9", "\\u20AC", "\\ud83d\\ude00"]
FAULTS = ["\\ud83d", "\\ude00", "\\x", "\t", "\\u12", '"']


def escaped(parts: list[str]) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(parts), max_size=20).map(lambda texts: '"' + "".join(texts) + '"')


def times(months: int, hours: int, fractions: list[str], zones: list[str]) -> st.SearchStrategy[str]:
    return st.builds(
        '"{:04d}-{:02d}-{:02d}{}{:02d}:{:02d}:{:02d}{}{}"'.format,
        st.sampled_from([2026, 1970, 1969, 2000, 1900, 1700]),
        st.integers(1, months), st.integers(1, 16 + months), st.sampled_from("T "), st.integers(0, hours),
        st.integers(0, 59), st.integers(0, 59), st.sampled_from(fractions), st.sampled_from(zones),
    )  # fmt: skip


GOOD_TIMES = times(12, 23, ["", ".5", ".123"], ["", "Z", "+02:00", "-23:59"])
BAD_TIMES = times(15, 25, ["", ".1234", ".", ".1234567890"], ["", "+0200", "+2", "+24:00", "z"]) | st.just(
    '"1600-01-01T00:00:00"'
)
GOOD: dict[str, st.SearchStrategy[str]] = {
    "id": st.integers(-(2**63), 2**63 - 1).map(str),
    "small": st.integers(-128, 127).map(str),
    "large": st.integers(0, 2**64 - 1).map(str),
    "x": st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.integers().map(str),
    "ok": st.sampled_from(["true", "false"]),
    "name": TEXTS.map(json.dumps) | TEXTS.map(lambda text: json.dumps(text, ensure_ascii=False)) | escaped(ESCAPES),
    "at": GOOD_TIMES,
    "fine": GOOD_TIMES,
    "price": st.sampled_from(["1.25", '"7.5"', "3"]),
    "tags": st.lists(TEXTS, max_size=2).map(json.dumps),
    "größe": st.integers(-5, 5).map(str),
    "gr\\u00f6\\u00dfe": st.integers(-5, 5).map(str),
    "other": escaped(ESCAPES)
    | st.sampled_from(["1.5e-7", "true", "[1, [], {}]", '{"a": {"b": "}"}, "c": [1]}', "[ ]"]),
}
BAD: dict[str, st.SearchStrategy[str]] = {
    **dict.fromkeys(("id", "small", "large", "x"), NUMBERS),
    **dict.fromkeys(("at", "fine"), BAD_TIMES),
    "ok": st.sampled_from(["tru", "1", "falsey"]),
    "name": escaped([*ESCAPES, *FAULTS]),
    "other": NUMBERS | escaped(FAULTS) | st.sampled_from(["{,}", '{"a" 1}', "[1 2]", "[1,]", "nul", "[}", '{"a": 1,}']),
}


@st.composite
def members(draw: st.DrawFn) -> tuple[str, str]:
    name = draw(st.sampled_from(sorted(GOOD)))
    if name in BAD and draw(st.integers(0, 19)) == 0:
        return name, draw(BAD[name])
    return name, draw(GOOD[name]) if name == "id" or draw(st.integers(0, 5)) else "null"


GAPS = st.sampled_from(["", "", "", " ", "\t "])


@st.composite
def lines(draw: st.DrawFn) -> str:
    by_name = (lambda member: member[0]) if draw(st.integers(0, 9)) else None  # None: a key may occur twice
    pairs = draw(st.lists(members(), max_size=8, unique_by=by_name))
    if draw(st.integers(0, 9)) and all(name != "id" for name, _ in pairs):
        pairs.append(("id", "1"))
    gap = draw(GAPS)
    inside = f"{gap},{gap}".join(f'"{name}"{gap}:{gap}{value}' for name, value in pairs)
    return f"{gap}{{{gap}{inside}{gap}}}{gap}"


def rows(parser: Any, data: bytes, count: int) -> list[dict[str, Any]] | None:
    try:
        batch = parser.parse(data, count)
    except pa.ArrowInvalid:
        return None
    batch.validate(full=True)
    floats = [
        value if value is None else struct.pack("d", value) for value in batch.column("x").to_pylist()
    ]  # -0.0 is not 0.0
    table = pa.table(batch).set_column(7, "fine", batch.column("fine").cast(pa.int64()))
    at = table.column("at").cast(pa.int64())
    return [*table.set_column(6, "at", at).to_pylist(), {"floats": floats}]


@settings(max_examples=examples(80))
@given(st.lists(lines(), min_size=1, max_size=4), st.sampled_from(["\n", "\r\n", "\n\n"]), st.booleans())
def test_the_kernel_reads_as_arrow_does(texts: list[str], end: str, is_ended: bool) -> None:
    """The declared columns decide; a malformed row is never dropped."""
    kernel = row_parser(SCHEMA)
    data = (end.join(texts) + (end if is_ended else "")).encode()
    if end == "\n":  # Arrow alone does not see that an object spans lines
        assert rows(kernel, data, len(texts)) == rows(ArrowRows(SCHEMA), data, len(texts))
    else:
        each = [rows(ArrowRows(SCHEMA), line.encode(), 1) for line in texts]
        result = rows(kernel, data, len(texts))
        assert (result is None) == (None in each)


@settings(max_examples=examples(100))
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=100))
def test_doubles_are_read_to_the_last_bit(numbers: list[float]) -> None:
    """Python's `float` is the oracle: correctly rounded."""
    parser = row_parser(pa.schema([pa.field("x", pa.float64())]))
    texts = [repr(number) for number in numbers] + [f"{number:.15e}" for number in numbers if math.isfinite(number)]
    data = "\n".join(f'{{"x": {text}}}' for text in texts).encode()
    values = parser.parse(data, len(texts)).column(0).to_numpy(zero_copy_only=False)
    assert values.view(np.int64).tolist() == np.array([float(text) for text in texts]).view(np.int64).tolist()


@pytest.mark.parametrize("share", [0, 1, 50])
def test_rows_that_the_kernel_refuses_stay_in_their_place(share: int) -> None:
    """A number such as 1E400 is malformed; a key with an escape is not, but needs Arrow's parser."""
    parser = row_parser(pa.schema([pa.field("n", pa.int64()), pa.field("name", pa.string())]))
    odd = [row * share % 100 < share for row in range(1_000)] if share else [False] * 1_000
    keys = ['"\\u006e"' if is_odd else '"n"' for is_odd in odd]
    data = "".join(f'{{{key}: {row}, "name": "é{row}"}}\n' for row, key in enumerate(keys))
    batch = parser.parse(data.encode(), 1_000)
    assert batch.to_pylist() == [{"n": row, "name": f"é{row}"} for row in range(1_000)]


def test_values_beside_the_kernel_are_checked() -> None:
    parser = row_parser(pa.schema([pa.field("n", pa.int64())]))
    with pytest.raises(pa.ArrowInvalid):
        parser.parse(b'{"n": 1}\n{"n": 2, "other": 1e400}\n', 2)
    with pytest.raises(pa.ArrowInvalid, match="2 objects in 1 lines"):
        parser.parse(b'{"n": 1}{"n": 2}\n', 1)
    with pytest.raises(pa.ArrowInvalid):
        parser.parse(b'{"n": 1}\n', 2)
    with pytest.raises(pa.ArrowInvalid):
        parser.parse(b'{"n": 1}\n{"n": 2}\n', 1)


def test_rows_that_are_too_long_together_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of 2 GiB in a batch. None is lost, though the first attempt fails."""
    schema = pa.schema([pa.field("n", pa.int64())])
    monkeypatch.setattr(json_rows, "_MAX_TEXT_BYTES", 40)
    result = KafkaJson(schema).decoder()([f'{{"n": {row}}}'.encode() for row in range(20)])
    assert (result.rows, result.malformed) == (None, ())
    assert result.batch.to_pylist() == [{"n": row} for row in range(20)]
