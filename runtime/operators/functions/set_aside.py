"""Rows for which an author's code raises an error, set aside as dead letters instead of failing the job.

The operator emits dead letters to a side output, in the same hook as the results of the other rows of the batch. Rows
and dead letters therefore belong to the same checkpoint: a restart neither loses nor repeats one.

No result of a row is emitted before the code has returned for it: a row passes as a whole, or is set aside as a whole.
"""

import socket
import traceback
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pyarrow as pa

from runtime.core.snapshot.manifest import SET_ASIDE_TIMES
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected, causes_of, is_outage
from runtime.operators.arguments import check_schema
from runtime.operators.column_difference import column_difference, columns_of
from runtime.operators.functions.row_values import add_row_note, rows_of
from runtime.operators.output_tag import OutputTag
from runtime.ports import Collector, Operator, OperatorContext
from runtime.state.encodings import nullable_schema

#: The columns of a dead letter. `row` is JSON for people, cut where it is long. `arrow` is the whole row, as an Arrow
#: IPC stream in base64, for a replay.
DEAD_LETTER: Final = pa.schema([
    ("operator", pa.string()), ("error", pa.string()), ("message", pa.string()), ("traceback", pa.string()),
    ("at", pa.timestamp("us", "UTC")), ("row", pa.string()), ("arrow", pa.string()),
])  # fmt: skip
DEAD_LETTERS: Final = OutputTag("dead_letters", DEAD_LETTER)
SET_ASIDE_COUNTER: Final = "set_aside."  #: prefix of a counter per type of error

MAX_MESSAGE, MAX_TRACEBACK, MAX_ROW = 1_000, 4_000, 10_000  #: characters
_FRAMES: Final = 5  #: of the traceback: those next to the error
_MAX_ERROR_TYPES: Final = 20  #: with a counter of their own
_OTHER_ERRORS: Final = "other errors"
_MINUTE_MS: Final = 60_000
_LARGE_STREAM: Final = 16_384  #: bytes; a longer one of a row is made again without the values of other rows
#: Errors of the environment beside those of `is_outage`. A cause of this kind counts, too.
_NOT_OF_ROW: Final = (MemoryError, EnvironmentFailure, TimeoutError, socket.gaierror)


def concerns_row(error: Exception) -> bool:
    """Whether an error may be due to the row. An outage or a lack of memory fails the job, as without a policy."""
    return not is_outage(error) and not any(isinstance(cause, _NOT_OF_ROW) for cause in causes_of(error))


class SetAsideRows:
    """The dead letters of a subtask, between two emissions.

    The times of the last minute are state: otherwise each restart of a job that exceeds the limit would allow as many
    rows again.

    Args:
        max_per_minute: one more dead letter within a minute fails the job, by the error of its row.
    """

    def __init__(self, max_per_minute: int) -> None:
        self._limit = max_per_minute
        self._times: deque[int] = deque(maxlen=max_per_minute)  #: of the newest dead letters
        self._letters: list[dict[str, Any]] = []

    def open(self, context: OperatorContext) -> None:
        self._context = context
        self._state = context.state.list_state(SET_ASIDE_TIMES)
        self._times.extend(sorted(self._state.get()))

    def snapshot(self) -> None:
        now_ms = self._context.now_ms()
        self._state.replace(time for time in self._times if now_ms - time < _MINUTE_MS)

    def add(self, row: pa.RecordBatch, error: Exception) -> None:
        """Sets a row aside. Raises `error` beyond the limit.

        Args:
            row: a batch of this row.
        """
        now_ms = self._context.now_ms()
        if len(self._times) == self._limit and now_ms - self._times[0] < _MINUTE_MS:
            error.add_note(f"{self._limit} rows were set aside within a minute, the limit max_per_minute of on_error")
            add_row_note(error, _values_of(row))
            raise error
        self._times.append(now_ms)
        self._letters.append(_letter(self._context.uid, now_ms, row, error))
        self._count(type(error).__name__)

    def flush(self, out: Collector) -> None:
        """Emits the dead letters to their side output."""
        letters, self._letters = self._letters, []
        if letters:
            out.emit_to(DEAD_LETTERS.name, pa.RecordBatch.from_pylist(letters, DEAD_LETTER))

    def _count(self, error: str) -> None:
        name, counters = SET_ASIDE_COUNTER + error, self._context.counters
        if name not in counters and sum(each.startswith(SET_ASIDE_COUNTER) for each in counters) >= _MAX_ERROR_TYPES:
            name = SET_ASIDE_COUNTER + _OTHER_ERRORS
        self._context.count(name)


class Bisect(Operator):
    """Runs an operator without state whose output rows each depend on their input row alone.

    A batch that raises an error is halved until the rows at fault are alone. Output of a batch that raised is dropped
    before its halves run, so no row is emitted twice.

    JobRejected, as for an unknown column, concerns all rows and fails the job.
    """

    def __init__(self, operator: Operator, letters: SetAsideRows) -> None:
        self.operator, self._letters = operator, letters

    def open(self, context: OperatorContext) -> None:
        self._letters.open(context)

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        for result in self._results(input, batch):
            out.emit(result)
        self._letters.flush(out)

    def snapshot(self, checkpoint: int) -> None:
        self._letters.snapshot()

    def _results(self, input: int, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        output = _Output()
        try:
            self.operator.process(input, batch, output)
            return output.batches
        except JobRejected:
            raise
        except Exception as error:
            if not batch.num_rows or not concerns_row(error):
                raise
            if batch.num_rows == 1:
                self._letters.add(batch, error)
                return []
        half = batch.num_rows // 2
        return self._results(input, batch.slice(0, half)) + self._results(input, batch.slice(half))


class _Output:
    """Collects the batches of the main output: a step with a policy has no side output of its own."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def emit(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    def emit_to(self, output: str, batch: pa.RecordBatch) -> None:
        raise AssertionError(f"unexpected output {output!r}")


def dead_letter_rows(schema: pa.Schema) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A function for `map_batches`, from dead letters to the rows that were set aside.

    Args:
        schema: the columns of the rows. Dead letters of other columns raise DataRejected: filter by `operator` first.
    """
    check_schema("dead_letter_rows", schema)
    expected = columns_of(schema)

    def rows(letters: pa.RecordBatch) -> pa.RecordBatch:
        parts = []
        for operator, text in zip(letters.column("operator"), letters.column("arrow"), strict=True):
            try:
                part = pa.ipc.open_stream(b64decode(text.as_py(), validate=True)).read_all()
            except (TypeError, ValueError, OSError, pa.ArrowException) as error:
                raise DataRejected(f"a dead letter of {operator.as_py()!r} has no readable row: {error}") from error
            columns = columns_of(part.schema)
            if list(expected.items()) != list(columns.items()):
                difference = column_difference(expected, columns)
                raise DataRejected(f"a dead letter of {operator.as_py()!r} has other columns: {difference}")
            parts.append(part.cast(nullable_schema(schema)))
        table = pa.concat_tables(parts).combine_chunks() if parts else nullable_schema(schema).empty_table()
        return table.to_batches()[0] if parts else pa.RecordBatch.from_pylist([], table.schema)

    return rows


def _letter(uid: str, now_ms: int, row: pa.RecordBatch, error: Exception) -> dict[str, Any]:
    described = traceback.TracebackException.from_exception(error, limit=-_FRAMES)
    return {
        "operator": uid,
        "error": type(error).__name__,
        "message": _text(str(described), MAX_MESSAGE),
        "traceback": _text("".join(described.format()), MAX_TRACEBACK, from_end=True),
        "at": datetime.fromtimestamp(now_ms / 1000, UTC),
        "row": _text(_row_text(row), MAX_ROW),
        "arrow": b64encode(_stream_of(row)).decode(),
    }


def _row_text(row: pa.RecordBatch) -> str:
    values = _values_of(row)
    try:
        return msgspec.json.encode(values, enc_hook=str).decode()
    except (TypeError, ValueError, OverflowError):  # an integer beyond 64 bits, a key that is no text
        return repr(values)


def _values_of(row: pa.RecordBatch) -> Any:
    """The values of the row; Arrow's text of it if it has none in Python."""
    try:
        return next(rows_of(row, far_times=True))
    except Exception:  # noqa: BLE001 - text that is no UTF-8, an unknown time zone
        return str(row)


def _text(text: str, limit: int, *, from_end: bool = False) -> str:
    """Text of `limit` characters at most, without lone surrogates, which Arrow refuses."""
    if len(text) > limit:
        text = f"… {text[-limit:]}" if from_end else f"{text[:limit]} …"
    return text.encode(errors="replace").decode()


def _stream_of(row: pa.RecordBatch) -> bytes:
    stream = _ipc_stream(row)
    if len(stream) <= _LARGE_STREAM:
        return stream
    return _ipc_stream(pa.RecordBatch.from_arrays([_alone(column) for column in row.columns], schema=row.schema))


def _ipc_stream(row: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_batch(row)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def _alone(column: pa.Array) -> pa.Array:
    """A column of one row without the values of other rows: a slice holds a whole dictionary, and all text of views."""
    if pa.types.is_dictionary(column.type):
        index, words = column.indices[0].as_py(), column.dictionary
        word = pa.nulls(0, words.type) if index is None else _alone(words.slice(index, 1))
        place = pa.array([None if index is None else 0], column.type.index_type)
        return pa.DictionaryArray.from_arrays(place, word, ordered=column.type.ordered)
    if column.null_count:
        return pa.nulls(1, column.type)
    try:
        return pa.array([column[0]], column.type)
    except Exception:  # noqa: BLE001 - a type that Arrow does not make from scalars, such as run-end encoded
        return column
