"""Operators that work on dictionary codes emit the rows that they emit for plain texts."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import DataRejected, JobRejected
from runtime.operators.aggregates import Aggregate, Count, Sum
from runtime.operators.broadcast_join import BUILD_INPUT, BroadcastJoin
from runtime.operators.expressions import Filter, filter_mask
from runtime.operators.windows.pre_aggregation import WindowPreAggregator
from runtime.state.encoded_texts import decode, encoded_columns
from tests.encoded_texts import TEXTS, batches, encoded, plain
from tests.operators.harness import Harness

BATCHES = st.lists(batches("text"), max_size=5)
TEXT = pc.field("text")


def emitted(operator: Any, batches: list[pa.RecordBatch], build: pa.RecordBatch | None = None) -> list[pa.RecordBatch]:
    harness = Harness(operator)
    if build is not None:
        harness.process(build, BUILD_INPUT)
    for batch in batches:
        harness.process(batch)
    return [decode(batch) for batch in harness.out.batches]


@pytest.mark.parametrize(
    "predicate",
    [
        TEXT == "view",
        TEXT != "view",
        TEXT.isin(["a", "", "none"]),
        TEXT.is_null(),
        TEXT.is_valid() & (TEXT > "a"),
        (TEXT == "a") | (pc.field("row") < 3),
        pc.field("row") > 4,
        pc.utf8_length(TEXT) > 1,
        pc.field(0) == "a",
    ],
    ids=str,
)
@given(BATCHES)
def test_a_filter_keeps_the_same_rows(predicate: pc.Expression, batches: list[pa.RecordBatch]) -> None:
    assert emitted(Filter(predicate), batches) == emitted(
        Filter(predicate), [plain(batch, "text") for batch in batches]
    )
    for batch in batches:
        assert filter_mask(predicate, batch).equals(filter_mask(predicate, plain(batch, "text")))


def test_a_filter_forwards_codes() -> None:
    harness = Harness(Filter(TEXT == "view"))
    harness.process(encoded("text", ["view", "click"], [0, 1, None, 0]))
    (output,) = harness.out.batches
    assert encoded_columns(output.schema) == ["text"]
    assert output["row"].to_pylist() == [0, 3]


def test_a_value_that_no_row_has_is_no_error_and_one_of_a_row_is() -> None:
    number = TEXT.cast(pa.int64()) > 5
    batch = encoded("text", ["7", "3", "x"], [0, 1, None, 2])
    assert [row["row"] for part in emitted(Filter(number), [batch.slice(0, 3)]) for row in part.to_pylist()] == [0]
    with pytest.raises(DataRejected, match="a value cannot be computed"):
        emitted(Filter(number), [batch])
    with pytest.raises(JobRejected, match="names the column 'worth'; the columns are text, row"):
        emitted(Filter((TEXT == "7") & (pc.field("worth") > 1)), [batch])


BUILD = pa.record_batch(
    {"text": ["view", "a", "", None, "other"], "name": ["View", None, "View", "?", "Other"], "n": [1, 2, 3, 4, 5]}
)


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("build", [BUILD, BUILD.slice(0, 0)], ids=["rows", "no rows"])
@given(BATCHES)
def test_a_join_emits_the_same_rows(how: str, build: pa.RecordBatch, batches: list[pa.RecordBatch]) -> None:
    def join() -> BroadcastJoin:
        return BroadcastJoin(["text"], ["name", "n"], how)

    expected = emitted(join(), [plain(batch, "text") for batch in batches], build)
    assert emitted(join(), batches, build) == expected


@given(BATCHES)
def test_a_join_on_two_columns_emits_the_same_rows(batches: list[pa.RecordBatch]) -> None:
    def join() -> BroadcastJoin:
        return BroadcastJoin(["text", "row"], ["name"])

    build = BUILD.rename_columns(["text", "name", "row"])
    assert emitted(join(), batches, build) == emitted(join(), [plain(batch, "text") for batch in batches], build)


def test_a_join_adds_codes_to_codes_only() -> None:
    batch = encoded("text", ["view", "a"], [0, 1, 0])
    for probe, columns in ((batch, ["text", "name"]), (plain(batch, "text"), [])):
        harness = Harness(BroadcastJoin(["text"], ["name"]))
        harness.process(BUILD, BUILD_INPUT)
        harness.process(probe)
        assert encoded_columns(harness.out.batches[0].schema) == columns


class OfAuthor(Sum):
    """An aggregate that does not declare its columns, and reads the key as text."""

    def columns(self) -> None:
        return None

    def accumulate(self, state: Any, name: str, batch: pa.RecordBatch, at: Any) -> Any:
        assert pa.types.is_string(batch.schema.field("text").type)
        return super().accumulate(state, name, batch, at)


def parts(
    batches: list[pa.RecordBatch], keys: tuple[str, ...], aggregates: dict[str, Aggregate], **tuning: int
) -> list[dict[str, Any]]:
    aggregator = WindowPreAggregator(keys, "row", 4, aggregates, **tuning)
    sent = [part for batch in batches for part in aggregator.add(batch)]
    sent += aggregator.advance(11)
    sent += aggregator.flush()
    assert not any(encoded_columns(part.schema) for part in sent)
    rows = [row for part in sent for row in part.to_pylist()]
    return sorted(rows, key=str)


@pytest.mark.parametrize("tuning", [{}, {"max_keys": 2}], ids=["all keys", "few keys"])
@pytest.mark.parametrize(
    "aggregates", [{"n": Count()}, {"sum": Sum("row")}, {"sum": OfAuthor("row")}], ids=["count", "sum", "own"]
)
@given(BATCHES)
def test_pre_aggregation_sends_the_same_rows(
    tuning: dict[str, int], aggregates: dict[str, Aggregate], batches: list[pa.RecordBatch]
) -> None:
    texts = [plain(batch, "text") for batch in batches]
    for keys in (("text",), ("text", "row")):
        assert parts(batches, keys, aggregates, **tuning) == parts(texts, keys, aggregates, **tuning)


def test_unused_values_of_a_dictionary_are_no_keys() -> None:
    """Otherwise a few rows with a long dictionary would end the pre-aggregation."""
    aggregator = WindowPreAggregator(("text",), "row", 1_000, {"n": Count()}, max_keys=2)
    for _ in range(3):
        assert aggregator.add(encoded("text", [*TEXTS, *TEXTS], [0, 5, 0] * 4)) == []
    assert [row["n:count"] for part in aggregator.flush() for row in part.to_pylist()] == [36]
