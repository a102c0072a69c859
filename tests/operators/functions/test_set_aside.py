"""Rows that are set aside: by functions over rows, by functions over batches, and by expressions."""

import json
import socket
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from urllib.error import URLError

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from runtime.core.snapshot.manifest import SET_ASIDE_TIMES
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected
from runtime.operators.expressions import Filter
from runtime.operators.functions.batch import MAX_ROWS_PER_BATCH, FlatMapRows, MapBatches, MapRows
from runtime.operators.functions.set_aside import (
    DEAD_LETTER,
    DEAD_LETTERS,
    MAX_MESSAGE,
    MAX_ROW,
    SET_ASIDE_COUNTER,
    Bisect,
    SetAsideRows,
    dead_letter_rows,
)
from runtime.ports import Operator
from tests.manual_clock import ManualClock
from tests.operators.harness import UID, Collected, Harness

NUMBERS = pa.schema([("n", pa.int64())])
BATCH = pa.record_batch({"n": list(range(10))})


def letters(harness: Harness) -> list[dict[str, Any]]:
    assert {name for name, _ in harness.out.side} <= {DEAD_LETTERS.name}
    return [letter for _, batch in harness.out.side for letter in batch.to_pylist()]


def rows_of_letters(harness: Harness, schema: pa.Schema = NUMBERS) -> list[dict[str, Any]]:
    decode = dead_letter_rows(schema)
    return [row for _, batch in harness.out.side for row in decode(batch).to_pylist()]


def twice_then_error(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Two rows; for every third row an error behind the first of them."""
    yield row
    if row["n"] % 3 == 0:
        raise KeyError(row["n"])
    yield row


def test_a_row_of_a_flat_map_passes_as_a_whole_or_is_set_aside_as_a_whole() -> None:
    harness = Harness(FlatMapRows(twice_then_error, NUMBERS, SetAsideRows(100)))
    assert [row["n"] for row in harness.process(BATCH)] == [n for n in range(10) if n % 3 for _ in "ab"]
    assert [row["n"] for row in rows_of_letters(harness)] == [0, 3, 6, 9]
    first = letters(harness)[0]
    assert (first["operator"], first["error"], first["message"]) == (UID, "KeyError", "0")
    assert json.loads(first["row"]) == {"n": 0}
    assert "twice_then_error" in first["traceback"]
    assert isinstance(first["at"], datetime)
    assert harness.context.counters == {f"{SET_ASIDE_COUNTER}KeyError": 4}


def test_a_large_output_is_cut_between_two_rows_that_are_set_aside() -> None:
    def many(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from ({"n": row["n"]} for _ in range(MAX_ROWS_PER_BATCH // 3))
        if row["n"] % 4 == 2:
            raise ValueError("late")

    harness = Harness(FlatMapRows(many, NUMBERS, SetAsideRows(100)))
    passed = [row["n"] for row in harness.process(BATCH)]
    assert passed == [n for n in range(10) if n % 4 != 2 for _ in range(MAX_ROWS_PER_BATCH // 3)]
    assert len(harness.out.batches) > 1
    assert max(batch.num_rows for batch in harness.out.batches) <= MAX_ROWS_PER_BATCH
    assert [row["n"] for row in rows_of_letters(harness)] == [2, 6]


def test_many_rows_of_one_row_are_several_batches() -> None:
    harness = Harness(FlatMapRows(lambda row: [row] * (2 * MAX_ROWS_PER_BATCH + 1), NUMBERS, SetAsideRows(100)))
    harness.process(BATCH.slice(0, 1))
    assert [batch.num_rows for batch in harness.out.batches] == [MAX_ROWS_PER_BATCH, MAX_ROWS_PER_BATCH, 1]


def test_a_row_whose_result_does_not_fit_is_set_aside_alone() -> None:
    results: list[Any] = [{"n": 1}, {"n": "text"}, {"m": 1}, None, {"n": 2.5}, {"n": 2.0}, {}]
    harness = Harness(MapRows(lambda row: results[row["n"]], NUMBERS, SetAsideRows(100)))
    assert harness.process(BATCH.slice(0, 7)) == [{"n": 1}, {"n": 2}, {"n": None}]
    assert sorted(row["n"] for row in rows_of_letters(harness)) == [1, 2, 3, 4]


def test_a_result_that_raises_while_it_is_read_is_set_aside_and_an_outage_is_not() -> None:
    class Lazy(dict[str, Any]):
        def __init__(self, error: Exception) -> None:
            super().__init__(n=1)
            self._error = error

        def __getitem__(self, key: str) -> Any:
            raise self._error

    harness = Harness(MapRows(lambda row: Lazy(RuntimeError("lazy")), NUMBERS, SetAsideRows(100)))
    assert harness.process(BATCH.slice(3, 1)) == []
    assert [row["n"] for row in rows_of_letters(harness)] == [3]
    away = Harness(MapRows(lambda row: Lazy(EnvironmentFailure("away")), NUMBERS, SetAsideRows(100)))
    with pytest.raises(EnvironmentFailure):
        away.process(BATCH.slice(3, 1))


def broken_text() -> pa.Array:
    buffers = [None, pa.array([0, 1, 3], pa.int32()).buffers()[1], pa.py_buffer(b"a\xff\xfe")]
    return pa.Array.from_buffers(pa.string(), 2, buffers)


@pytest.mark.parametrize(
    "column", [broken_text(), pa.array([1, 2], pa.timestamp("us", "Nowhere/Town"))], ids=["no UTF-8", "unknown zone"]
)
def test_a_row_without_values_in_python_is_a_dead_letter_with_its_bytes(column: pa.Array) -> None:
    batch = pa.record_batch({"value": column})

    def fail(rows: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("always")

    by_batch = Harness(Bisect(MapBatches(fail), SetAsideRows(100)))
    by_row = Harness(MapRows(lambda row: row, batch.schema, SetAsideRows(100)))
    for harness, at_fault in ((by_batch, batch), (by_row, batch.slice(1 if column.type == pa.string() else 0))):
        harness.process(batch)
        replayed = pa.Table.from_batches([dead_letter_rows(batch.schema)(each) for _, each in harness.out.side])
        assert replayed.combine_chunks().column("value").chunk(0).equals(at_fault.column("value"))
        assert all("value" in letter["row"] for letter in letters(harness))
    limited = Harness(Bisect(MapBatches(fail), SetAsideRows(1)))
    with pytest.raises(ValueError, match="always"):
        limited.process(batch)


WORDS = pa.array([f"a word of some length, number {number}" for number in range(5_000)])
TIMES = pa.array(range(5_000), pa.timestamp("us"))


@pytest.mark.parametrize(
    "column",
    [
        WORDS.dictionary_encode(),
        TIMES.dictionary_encode(),
        WORDS.cast(pa.string_view()),
        pa.array([[word] for word in WORDS.to_pylist()], pa.list_(pa.string_view())),
        pa.StructArray.from_arrays([WORDS.dictionary_encode(), TIMES], ["word", "time"]),
        pa.DictionaryArray.from_arrays(pa.array([None] * 5_000, pa.int32()), WORDS),
    ],
    ids=lambda column: str(column.type)[:20],
)
def test_a_dead_letter_has_no_values_of_other_rows(column: pa.Array) -> None:
    rows = SetAsideRows(100)
    rows.open(Harness(MapRows(dict, NUMBERS)).context)
    rows.add((batch := pa.record_batch({"value": column})).slice(4_000, 1), ValueError("no"))
    out = Collected()
    rows.flush(out)
    ((_, letter),) = out.side
    assert len(letter.column("arrow")[0].as_py()) < 2_000
    assert dead_letter_rows(batch.schema)(letter).to_pylist() == batch.slice(4_000, 1).to_pylist()


def test_a_time_that_python_lacks_costs_its_row_only() -> None:
    times = pa.schema([("at", pa.timestamp("us"))])
    batch = pa.record_batch([pa.array([0, 2**62, 1], pa.int64()).cast(pa.timestamp("us"))], schema=times)
    harness = Harness(MapRows(lambda row: row, times, SetAsideRows(100)))
    assert len(harness.process(batch)) == 2
    assert letters(harness)[0]["error"] == "OverflowError"
    (part,) = [dead_letter_rows(times)(each) for _, each in harness.out.side]
    assert part.column("at").cast(pa.int64()).to_pylist() == [2**62]


def fail_at(*numbers: int) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    def function(batch: pa.RecordBatch) -> pa.RecordBatch:
        if bad := set(numbers).intersection(batch.column("n").to_pylist()):
            raise ValueError(min(bad))
        return batch

    return function


@pytest.mark.parametrize("bad", [(), (0,), (9,), (4, 5), (1, 2, 3, 8), tuple(range(10))])
def test_a_batch_that_raises_is_halved_until_the_rows_at_fault_are_alone(bad: tuple[int, ...]) -> None:
    harness = Harness(Bisect(MapBatches(fail_at(*bad)), SetAsideRows(100)))
    assert [row["n"] for row in harness.process(BATCH)] == [n for n in range(10) if n not in bad]
    assert [row["n"] for row in rows_of_letters(harness)] == list(bad)


def test_output_before_the_error_of_a_batch_is_not_emitted_twice() -> None:
    class EmitsThenRaises(Operator):
        def process(self, input: int, batch: pa.RecordBatch, out: Any) -> None:
            for number in range(batch.num_rows):
                row = batch.slice(number, 1)
                if row.column("n")[0].as_py() == 7:
                    raise ValueError("seven")
                out.emit(row)

    harness = Harness(Bisect(EmitsThenRaises(), SetAsideRows(100)))
    assert [row["n"] for row in harness.process(BATCH)] == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert [row["n"] for row in rows_of_letters(harness)] == [7]


def test_an_expression_sets_the_rows_aside_for_which_it_has_no_value() -> None:
    harness = Harness(Bisect(Filter(pc.scalar(10) / (pc.field("n") - 5) > 0), SetAsideRows(100)))
    assert [row["n"] for row in harness.process(BATCH)] == [6, 7, 8, 9]
    assert [row["n"] for row in rows_of_letters(harness)] == [5]


def test_a_plan_mistake_fails_the_job_and_makes_no_dead_letter() -> None:
    harness = Harness(Bisect(Filter(pc.field("nope") > 0), SetAsideRows(100)))
    with pytest.raises(JobRejected, match="nope"):
        harness.process(BATCH)
    assert letters(harness) == []


def unknown_host() -> Exception:
    error = URLError("unknown host")
    error.__cause__ = socket.gaierror(-2, "unknown host")
    return error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        EnvironmentFailure("away"),
        ConnectionRefusedError(111, "refused"),
        TimeoutError("too late"),
        socket.gaierror(-2, "unknown host"),
        unknown_host(),
    ],
    ids=repr,
)
@pytest.mark.parametrize("by_row", [True, False])
def test_an_error_that_is_not_due_to_the_row_fails_the_job(error: Exception, by_row: bool) -> None:
    def fail(_: Any) -> Any:
        raise error

    rows = SetAsideRows(100)
    harness = Harness(MapRows(fail, NUMBERS, rows) if by_row else Bisect(MapBatches(fail), rows))
    with pytest.raises(type(error)):
        harness.process(BATCH)
    assert letters(harness) == []


def test_a_row_above_the_limit_fails_the_job_and_the_limit_is_that_of_a_minute() -> None:
    clock = ManualClock()
    harness = Harness(MapRows(lambda row: {}[row["n"]], NUMBERS, SetAsideRows(4)), clock=clock)
    harness.process(BATCH.slice(0, 4))
    clock.advance(59_999)
    with pytest.raises(KeyError) as raised:
        harness.process(BATCH.slice(4, 1))
    assert any("max_per_minute" in note for note in raised.value.__notes__)
    assert any("{'n': 4}" in note for note in raised.value.__notes__)
    clock.advance(1)
    harness.process(BATCH.slice(5, 1))
    assert [row["n"] for row in rows_of_letters(harness)] == [0, 1, 2, 3, 5]


def test_the_rows_of_the_last_minute_count_after_a_restore() -> None:
    clock = ManualClock()
    harness = Harness(MapRows(lambda row: {}[row["n"]], NUMBERS, SetAsideRows(4)), clock=clock)
    harness.process(BATCH.slice(0, 1))
    clock.advance(50_000)
    harness.process(BATCH.slice(1, 3))
    harness.operator.snapshot(1)
    times = harness.state.capture(full=True).lists
    assert len(times[SET_ASIDE_TIMES]) == 4
    restored = Harness(Bisect(MapBatches(fail_at(*range(10))), SetAsideRows(4)), clock=clock, lists=times)
    with pytest.raises(ValueError, match="4"):
        restored.process(BATCH.slice(4, 1))
    clock.advance(10_000)
    restored.process(BATCH.slice(5, 1))
    with pytest.raises(ValueError, match="6"):
        restored.process(BATCH.slice(6, 1))
    clock.advance(60_000)
    restored.operator.snapshot(2)
    assert not restored.state.capture(full=True).lists[SET_ASIDE_TIMES]


def test_a_dead_letter_holds_any_row_and_any_error_and_is_bounded_but_for_the_row() -> None:
    schema = pa.schema([("text", pa.string()), ("raw", pa.binary()), ("list", pa.list_(pa.float64()))])
    row = {"text": "x" * 20_000, "raw": b"\xff\x00", "list": [float("inf"), None]}

    class Unprintable(Exception):
        def __str__(self) -> str:
            raise TypeError("no text")

    errors = iter([ValueError("y" * 20_000), ValueError("\ud800"), Unprintable()])

    def fail(_: Any) -> Any:
        raise next(errors)

    harness = Harness(MapRows(fail, schema, SetAsideRows(100)))
    harness.process(pa.RecordBatch.from_pylist([row] * 3, schema))
    assert rows_of_letters(harness, schema) == [row] * 3
    long, surrogate, unprintable = letters(harness)
    assert len(long["message"]) < MAX_MESSAGE + 10
    assert len(long["row"]) < MAX_ROW + 10
    assert surrogate["message"] == "?"
    assert unprintable["error"] == "Unprintable"


def test_many_types_of_errors_have_a_common_counter() -> None:
    def fail(row: dict[str, Any]) -> Any:
        raise type(f"Error{row['n']}", (Exception,), {})

    harness = Harness(MapRows(fail, NUMBERS, SetAsideRows(100)))
    harness.process(pa.record_batch({"n": list(range(30))}))
    assert len(harness.context.counters) == 21
    assert sum(harness.context.counters.values()) == 30


def test_dead_letters_of_other_columns_are_refused_by_name() -> None:
    harness = Harness(MapRows(lambda row: {}[row["n"]], NUMBERS, SetAsideRows(100)))
    harness.process(BATCH)
    (_, batch) = harness.out.side[0]
    with pytest.raises(DataRejected, match=r"dead letter of 'op' has other columns: 'm' is missing; 'n' is new"):
        dead_letter_rows(pa.schema([("m", pa.int64())]))(batch)
    assert dead_letter_rows(NUMBERS)(batch.slice(0, 0)).num_rows == 0


@pytest.mark.parametrize("damage", [None, "no base64!", "QUJD", lambda text: text[: len(text) // 8 * 4]])
def test_a_dead_letter_without_its_row_is_refused_by_name(damage: Any) -> None:
    harness = Harness(MapRows(lambda row: {}[row["n"]], NUMBERS, SetAsideRows(100)))
    harness.process(BATCH.slice(0, 1))
    (letter,) = letters(harness)
    letter["arrow"] = damage(letter["arrow"]) if callable(damage) else damage
    with pytest.raises(DataRejected, match="a dead letter of 'op' has no readable row"):
        dead_letter_rows(NUMBERS)(pa.RecordBatch.from_pylist([letter], DEAD_LETTER))
