"""The consumers of ShuffleBench in Weir: an operator over Arrow batches, with 64 opaque bytes of state per consumer."""

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import weir
from benchmarks.datasets.records import NUMBER_DIGITS
from benchmarks.workloads.records import RECORDS_PER_EVENT

if TYPE_CHECKING:
    from benchmarks.systems.weir_inputs import WeirInputs

_DATA: Final = ("data0", "data1", "data2", "data3")  #: bytes of the last record
_WORD_BYTES: Final = 8
_STATE: Final = pa.schema(
    [pa.field(name, pa.int64(), nullable=False) for name in ("count", "sum", "start", "end", *_DATA)]
)
_EVENTS: Final = pa.schema([("consumer", pa.string()), ("records", pa.int64()), ("sum", pa.int64())])
_POWERS: Final = 10 ** np.arange(NUMBER_DIGITS - 1, -1, -1)

Numbers = npt.NDArray[Any]


class Consumers(weir.spi.Operator):
    """Passes each record to its consumer. The records of a batch are sorted by consumer and divided into runs.

    A run ends with an event, or with the last record of its consumer in the batch.
    """

    def open(self, context: weir.spi.OperatorContext) -> None:
        self._table = context.state.keyed_table("consumers", pa.schema([("consumer", pa.string())]), _STATE)

    def process(self, input: int, batch: pa.RecordBatch, out: weir.spi.Collector) -> None:
        if not batch.num_rows:
            return
        row_ids = self._table.upsert([batch["consumer"]])
        state = {name: self._table.column(name) for name in _STATE.names}
        order = np.argsort(row_ids, kind="stable")
        row_ids = row_ids[order]
        is_first = np.append(True, row_ids[1:] != row_ids[:-1])
        firsts = np.flatnonzero(is_first)
        ranks = np.arange(len(order)) - np.repeat(firsts, np.diff(firsts, append=len(order)))
        is_event = (state["count"][row_ids] + ranks + 1) % RECORDS_PER_EVENT == 0

        starts = np.flatnonzero(is_first | np.append(False, is_event[:-1]))
        ends = np.append(starts[1:], len(order)) - 1
        first, last = order[starts], order[ends]
        is_last, full, keys = np.append(is_first[starts[1:]], True), is_event[ends], row_ids[starts]
        before = np.where(is_first[starts], state["count"][keys], 0)
        sums = np.add.reduceat(_numbers(batch["record"])[order], starts) + np.where(before, state["sum"][keys], 0)
        times = batch["event_time"].cast(pa.int64()).to_numpy()
        words = _bytes(batch["record"], last, NUMBER_DIGITS, len(_DATA) * _WORD_BYTES).view(np.int64)
        values = {
            "count": before + ends - starts + 1,
            "sum": sums,
            "start": np.where(before, state["start"][keys], times[first]),
            "end": times[last],
            **dict(zip(_DATA, words.T, strict=True)),
        }
        for name, column in values.items():
            state[name][keys[is_last]] = np.where(full, 0, column)[is_last]
        self._table.touch(row_ids[firsts])
        if full.any():
            consumers = batch["consumer"].take(pa.array(last[full]))
            events = [consumers, pa.array(values["count"][full]), pa.array(sums[full])]
            out.emit(pa.RecordBatch.from_arrays(events, schema=_EVENTS))

    def output_columns(self) -> pa.Schema:
        return _EVENTS


def _numbers(records: pa.Array) -> Numbers:
    """The number at the start of each record."""
    digits = _bytes(records, np.arange(len(records)), 0, NUMBER_DIGITS) - np.uint8(ord("0"))
    numbers: Numbers = digits.astype(np.int64) @ _POWERS
    return numbers


def _bytes(records: pa.Array, rows: Numbers, start: int, count: int) -> Numbers:
    """A row of `count` bytes from `start` on for each of the records `rows`."""
    _, offsets, text = records.buffers()
    positions = np.frombuffer(offsets, np.int32)[records.offset + rows]
    characters: Numbers = np.frombuffer(text, np.uint8)[positions[:, np.newaxis] + np.arange(start, start + count)]
    return characters


def read(inputs: "WeirInputs") -> weir.Stream:
    return inputs.table("records", "event_time")


def events(inputs: "WeirInputs") -> weir.Stream:
    return read(inputs).key_by("consumer").transform("consumers", Consumers, _EVENTS)
