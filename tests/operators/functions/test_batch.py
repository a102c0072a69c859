"""Stateless steps."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from runtime.operators.functions.batch import MAX_ROWS_PER_BATCH, FlatMapRows, MapBatches
from tests.operators.harness import Harness

LINES = pa.RecordBatch.from_pydict({"line": ["a barrier across", "", "a stream"]})
WORDS = pa.schema([("word", pa.string())])


def words(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return ({"word": word} for word in row["line"].split())


def test_a_flat_map_gives_any_number_of_rows_in_order() -> None:
    rows = Harness(FlatMapRows(words, WORDS)).process(LINES)
    assert [row["word"] for row in rows] == ["a", "barrier", "across", "a", "stream"]


def test_a_flat_map_that_gives_nothing_sends_nothing() -> None:
    harness = Harness(FlatMapRows(lambda row: [], WORDS))
    assert harness.process(LINES) == []
    assert harness.out.batches == []


def test_a_flat_map_cuts_large_output_into_batches() -> None:
    harness = Harness(FlatMapRows(lambda row: ({"word": "x"} for _ in range(MAX_ROWS_PER_BATCH)), WORDS))
    assert len(harness.process(LINES)) == 3 * MAX_ROWS_PER_BATCH
    assert [batch.num_rows for batch in harness.out.batches] == [MAX_ROWS_PER_BATCH] * 3


def test_a_map_works_on_whole_batches_and_sends_no_empty_ones() -> None:
    harness = Harness(MapBatches(lambda batch: batch.filter(pc.equal(batch["line"], "a stream"))))
    assert harness.process(LINES) == [{"line": "a stream"}]
    assert harness.process(LINES.slice(0, 2)) == []
    assert len(harness.out.batches) == 1


def test_a_map_that_returns_something_else_is_told_so() -> None:
    with pytest.raises(TypeError, match=r"must return a pyarrow.RecordBatch, not int"):
        Harness(MapBatches(lambda batch: 3)).process(LINES)
