"""The output side of one subtask: one schema for everything that it emits, and rows folded before they are sent."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from runtime.core.job.graph import JobGraph, Partitioning
from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.job.messages import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    Barrier,
    CheckpointKind,
    Control,
    EndOfData,
    Idle,
    Message,
    Records,
    TerminationMarker,
    Watermark,
)
from runtime.core.snapshot.row_numbers import Receipts, RepeatedRows
from runtime.dataflow.plan import Edge, PreAggregation
from runtime.errors import DataRejected, JobRejected, OperatorFailure, RowsNotRepeated, WeirError
from runtime.operators.aggregates import Count
from runtime.operators.windows.pre_aggregation import WindowPreAggregator
from runtime.state.encoded_texts import encoded_columns
from runtime.task import output
from runtime.task.output import GuardedCollector, Outputs
from tests.core.builders import chain, edge, operator, sink, source, subtask
from tests.encoded_texts import encoded, plain
from tests.task.tasks import CREDIT, plain_edges

FIRST = pa.record_batch({"key": [1], "value": [2]})


def outputs(sent: list[tuple[ChannelId, Message]]) -> Outputs:
    return Outputs(
        chain(),
        subtask("b/0"),
        lambda channel, message: sent.append((channel, message)),
        plain_edges(chain()),
        flow=CREDIT,
    )


@pytest.mark.parametrize(
    ("batch", "difference"),
    [
        (pa.record_batch({"key": [1], "value": ["2"]}), "'value' was int64 and is string"),
        (pa.record_batch({"key": [1], "worth": [2]}), "'value' is missing; 'worth' is new"),
        (pa.record_batch({"value": [2], "key": [1]}), "their order was key, value and is value, key"),
    ],
)
def test_an_operator_that_changes_its_columns_is_named_with_the_difference(
    batch: pa.RecordBatch, difference: str
) -> None:
    """Also where the receiver is in the same slot, and would have taken it."""
    sent: list[tuple[ChannelId, Message]] = []
    out = outputs(sent)
    out.emit_to("", FIRST)
    with pytest.raises(WeirError, match=f"operator 'b' changed the columns of its output: {difference}"):
        out.emit_to("", batch)
    assert len(sent) == 1


def test_what_is_no_matter_of_the_columns_may_change() -> None:
    """Metadata of whoever made the batch, and whether nulls are possible; an empty batch is not sent at all.

    Nulls are possible in all that is sent: a channel and a file have one schema, which is that of the first batch.
    """
    sent: list[tuple[ChannelId, Message]] = []
    out = outputs(sent)
    strict = pa.schema([pa.field("key", pa.int64(), nullable=False), ("value", pa.int64())], metadata={"by": "pandas"})
    empty = pa.record_batch({"other": pa.array([], pa.string())})
    for batch in (FIRST.cast(strict), FIRST.cast(strict), empty, FIRST, FIRST.cast(strict)):
        out.emit_to("", batch)
    payloads = [message.payload for _, message in sent if isinstance(message, Records)]
    assert [batch.to_pylist() for batch in payloads] == [FIRST.to_pylist()] * 4
    assert all(batch.schema.equals(FIRST.schema) for batch in payloads)
    assert pa.Table.from_batches(payloads).num_rows == 4


TIMED = pa.record_batch({"key": [1, 1, 2], "time": [0, 5, 7]})


def combining(sent: list[tuple[ChannelId, Message]], *behind: str) -> Outputs:
    """Windows of 10 ms behind operator b of two slots; behind these more operators, and a sink."""
    chained = pairwise(["w", *behind, "c"])
    edges = (edge("a", "b"), edge("b", "w", Partitioning.HASH), *(edge(sender, other) for sender, other in chained))
    operators = [operator(uid, 2) for uid in ("b", "w", *behind)]
    graph = JobGraph((source("a", 2), *operators, sink("c", 2)), edges, max_parallelism=8)
    folding = PreAggregation(10, partial(WindowPreAggregator, ["key"], "time", 10, {"n": Count()}))
    compiled = [replace(each, pre_aggregation=folding if n == 1 else None) for n, each in enumerate(plain_edges(graph))]
    return Outputs(graph, subtask("b/0"), lambda *message: sent.append(message), compiled, flow=CREDIT)


@pytest.mark.parametrize(
    "control",
    [
        Watermark(9), Idle(), EndOfData(True), EndOfData(False), TerminationMarker(1, 1),
        Barrier(CheckpointId(1), CheckpointKind.CHECKPOINT, 0),
    ],
)  # fmt: skip
def test_what_is_held_back_goes_ahead_of_what_must_not_overtake_it(control: Control) -> None:
    """S0-20: nothing is held while state is captured; the rows of a message are those that went into it."""
    sent: list[tuple[ChannelId, Message]] = []
    out = combining(sent)
    out.emit_to("", TIMED)
    out.broadcast(Watermark(8))
    assert [message for _, message in sent] == [Watermark(-1)] * 2
    out.broadcast(control)
    messages = [message for _, message in sent[2:]]
    records = [message for message in messages if isinstance(message, Records)]
    assert sum(message.rows for message in records) == out.records == 3
    assert messages == [*records, control, control]
    assert out.credits.runnable


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (TIMED.drop_columns("time"), JobRejected),
        (pa.record_batch({"key": [1], "time": pa.array([None], pa.int64())}), DataRejected),
    ],
)
def test_a_failure_of_the_pre_aggregation_is_a_failure_of_the_window(
    batch: pa.RecordBatch, error: type[WeirError]
) -> None:
    with pytest.raises(OperatorFailure, match="operator 'w', subtask 0, in pre-aggregation after 'b': ") as failed:
        combining([]).emit_to("", batch)
    assert isinstance(failed.value.__cause__, error)
    assert failed.value.operator == "w"


def test_a_subtask_that_is_set_aside_holds_nothing_back() -> None:
    """S0-65: its timers may still make rows. Event time goes on without it meanwhile, and would pass what it held."""
    sent: list[tuple[ChannelId, Message]] = []
    out = combining(sent)
    out.broadcast(Watermark(3))
    out.broadcast(Idle())
    out.emit_to("", TIMED)
    assert sum(message.rows for _, message in sent if isinstance(message, Records)) == 3
    out.broadcast(Watermark(3))
    out.emit_to("", TIMED)
    assert sum(message.rows for _, message in sent if isinstance(message, Records)) == 3


def test_the_last_windows_of_a_job_are_told_of_event_time_when_a_pane_is_over() -> None:
    """And when the channel counts again: else it would go on without it."""
    sent: list[tuple[ChannelId, Message]] = []
    out = combining(sent)
    said: list[int | Idle] = [MIN_WATERMARK, 0, 8, 9, 12, 18, 31, Idle(), 31, 33, 40, MAX_WATERMARK]
    for value in said:
        out.broadcast(Watermark(value) if isinstance(value, int) else value)
    messages = [message for channel, message in sent if channel.target == 0]
    assert messages == [
        Watermark(MIN_WATERMARK), Watermark(-1), Watermark(9), Watermark(29), Idle(), Watermark(29), Watermark(39),
        Watermark(MAX_WATERMARK),
    ]  # fmt: skip


def test_windows_before_others_who_know_event_time_are_told_of_all_of_it() -> None:
    """What stands behind them may have timers between the ends of two panes."""
    sent: list[tuple[ChannelId, Message]] = []
    out = combining(sent, "timers")
    for time in (0, 8, 9):
        out.broadcast(Watermark(time))
    assert [message for channel, message in sent if channel.target == 0] == [Watermark(0), Watermark(8), Watermark(9)]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pa.decimal256(50, 2), "decimal256"),
        (pa.decimal32(5, 2), "decimal32"),
        (pa.decimal64(5, 2), "decimal64"),
        (pa.float16(), "halffloat"),
        (pa.month_day_nano_interval(), "month_day_nano_interval"),
        (pa.list_(pa.int64()), "list"),
    ],
)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_rows_whose_key_column_cannot_be_a_key_are_refused_by_name(
    kind: pa.DataType, name: str, parallelism: int
) -> None:
    """Whatever the receiver does with them: it ended in Arrow's own errors, and restarts without end."""
    graph = JobGraph(
        (source("a"), operator("b", parallelism), sink("c")), (edge("a", "b", Partitioning.HASH), edge("b", "c")), 8
    )
    out = Outputs(graph, subtask("a/0"), lambda channel, message: None, plain_edges(graph))
    with pytest.raises(JobRejected, match=rf"key: a column of type {name}.* cannot be a key \(operator 'b'\)"):
        out.emit_to("", pa.record_batch({"key": pa.nulls(1, kind)}))
    with pytest.raises(JobRejected, match="key: there is no such key column for operator 'b'; there are value"):
        out.emit_to("", pa.record_batch({"value": [1]}))


TEXT = pa.string_view()


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array(["x", None], TEXT), pa.string()),
        (pa.array([b"x", None], pa.binary_view()), pa.binary()),
        (pa.array([["x"], None], pa.list_(TEXT)), pa.list_(pa.string())),
        (pa.array([["x"], None], pa.large_list(TEXT)), pa.large_list(pa.string())),
        (pa.array([["x"], None], pa.list_(TEXT, 1)), pa.list_(pa.string(), 1)),
        (pa.array([{"a": "x"}, None], pa.struct([("a", TEXT)])), pa.struct([("a", pa.string())])),
        (pa.array([[("a", "b")], None], pa.map_(TEXT, TEXT)), pa.map_(pa.string(), pa.string())),
        (pa.DictionaryArray.from_arrays([0, None], pa.array(["x"], TEXT)), pa.dictionary(pa.int64(), pa.string())),
        (pc.run_end_encode(pa.array([1, None])), pa.int64()),
    ],
    ids=lambda value: str(value) if isinstance(value, pa.DataType) else "",
)
def test_columns_whose_rows_cannot_be_taken_are_dealt_by_key_as_plain_ones(column: pa.Array, kind: pa.DataType) -> None:
    """Arrow takes no rows of views and run ends; DuckDB and Polars return string views."""
    sent: list[tuple[ChannelId, Message]] = []
    graph = JobGraph((source("a", 2), sink("c", 2)), (edge("a", "c", Partitioning.HASH),), max_parallelism=8)
    out = Outputs(graph, subtask("a/0"), lambda *message: sent.append(message), plain_edges(graph))
    field = pa.field("value", column.type, metadata={"by": "duckdb"})
    batch = pa.record_batch([pa.array([1, 6]), column], schema=pa.schema([("key", pa.int64()), field]))
    for _ in range(2):
        out.emit_to("", batch)
    parts = [message.payload for _, message in sent if isinstance(message, Records)]
    assert {part.schema.field("value").type for part in parts} == {kind}
    rows = [row for part in parts for row in part.to_pylist()]
    assert sorted(rows, key=str) == sorted(2 * batch.to_pylist(), key=str)
    assert len(parts) == 4, "both channels had rows of each batch"


# ---------------------------------------------------------------- side outputs

LATE = pa.record_batch({"at": [3]})


def with_side_output(sent: list[tuple[ChannelId, Message]], columns: pa.Schema | None = None) -> Outputs:
    """Operator a has a main output to b, and a side output "late" to c; "unread" has no reader."""
    late = replace(edge("a", "c"), output="late")
    graph = JobGraph((source("a"), sink("b"), sink("c")), (edge("a", "b"), late), 8)
    declared = {} if columns is None else {"late": columns}
    return Outputs(graph, subtask("a/0"), lambda *message: sent.append(message), plain_edges(graph), declared)


def test_each_edge_carries_its_output_and_all_carry_control_messages() -> None:
    sent: list[tuple[ChannelId, Message]] = []
    out = with_side_output(sent, LATE.schema)
    out.emit_to("", FIRST)
    out.emit_to("late", LATE)
    out.emit_to("unread", FIRST)
    out.broadcast(Watermark(7))
    pairs = [(channel.edge, getattr(message, "payload", message)) for channel, message in sent]
    assert pairs == [(0, FIRST), (1, LATE), (0, Watermark(7)), (1, Watermark(7))]
    assert out.records == 3


def test_each_output_has_columns_of_its_own() -> None:
    sent: list[tuple[ChannelId, Message]] = []
    out = with_side_output(sent)
    out.emit_to("", FIRST)
    out.emit_to("late", LATE)
    with pytest.raises(WeirError, match="operator 'a' changed the columns of its output: 'at' is missing"):
        out.emit_to("late", FIRST)
    assert len(sent) == 2


def test_rows_of_a_side_output_have_the_declared_columns() -> None:
    out = with_side_output([], pa.schema([("at", pa.string_view())]))
    out.emit_to("late", pa.record_batch({"at": ["noon"]}))
    out = with_side_output([], LATE.schema)
    with pytest.raises(
        JobRejected, match=r"side output 'late' differ from the declared columns: 'at' was int64"
    ) as error:
        out.emit_to("late", pa.record_batch({"at": ["noon"]}))
    assert (error.value.code, error.value.field) == ("wrong-columns", "a")


def test_a_side_output_is_refused_where_rows_would_be_lost() -> None:
    """S3-61."""
    sent: list[tuple[ChannelId, Message]] = []
    out = GuardedCollector(with_side_output(sent))
    with out.rejecting_output("while state is captured"), pytest.raises(WeirError, match="while state is captured"):
        out.emit_to("late", LATE)
    assert sent == []
    out.emit_to("late", LATE)
    assert len(sent) == 1


# ---------------------------------------------------------------- dictionary-encoded texts

CODES = encoded("text", ["a", "b", "a"], [0, 1, None, 2])


def sent_through(out: Outputs, sent: list[tuple[ChannelId, Message]], *batches: pa.RecordBatch) -> list[pa.RecordBatch]:
    for batch in batches:
        out.emit_to("", batch)
    return [message.payload for _, message in sent if isinstance(message, Records)]


@pytest.mark.parametrize("partitioning", [Partitioning.HASH, Partitioning.CUSTOM, Partitioning.BROADCAST])
def test_receivers_in_other_slots_get_texts(partitioning: Partitioning) -> None:
    sent: list[tuple[ChannelId, Message]] = []
    keys = () if partitioning is Partitioning.BROADCAST else ("text",)
    between = replace(edge("a", "c", partitioning), keys=keys)
    graph = JobGraph((source("a", 2), sink("c", 2)), (between,), max_parallelism=8)

    def first(batch: pa.RecordBatch, parallelism: int) -> np.ndarray:
        assert pa.types.is_string(batch.schema.field("text").type)
        return np.arange(batch.num_rows) % parallelism

    out = Outputs(graph, subtask("a/0"), lambda *message: sent.append(message), [Edge(spec=between, partitioner=first)])
    parts = sent_through(out, sent, CODES)
    assert all(part.schema.equals(plain(CODES, "text").schema, check_metadata=True) for part in parts)
    rows = sorted({str(row) for part in parts for row in part.to_pylist()})
    assert rows == sorted(map(str, CODES.to_pylist()))


@pytest.mark.parametrize("is_encoded", [False, True], ids=["none", "to b"])
def test_codes_go_to_steps_of_the_slot_that_take_them_and_texts_to_others(is_encoded: bool) -> None:
    sent: list[tuple[ChannelId, Message]] = []
    graph = JobGraph((source("a"), sink("b"), sink("c")), (edge("a", "b"), edge("a", "c")), 8)
    to_b, to_c = plain_edges(graph)
    compiled = [replace(to_b, is_encoded=is_encoded), to_c]
    out = Outputs(graph, subtask("a/0"), lambda *message: sent.append(message), compiled)
    b, c, few_b, _ = sent_through(out, sent, CODES, CODES.slice(0, 2))
    assert bool(encoded_columns(b.schema)) == is_encoded
    assert not encoded_columns(c.schema)
    assert not encoded_columns(few_b.schema), "its dictionary has three values"


def test_codes_and_texts_may_alternate_but_other_types_may_not() -> None:
    sent: list[tuple[ChannelId, Message]] = []
    out = outputs(sent)
    out.columns = {"": plain(CODES, "text").schema}
    batches = sent_through(out, sent, CODES, plain(CODES, "text"), CODES)
    assert [batch.to_pylist() for batch in batches] == 3 * [CODES.to_pylist()]
    codes = CODES.cast(pa.schema([field.remove_metadata() for field in CODES.schema]))
    with pytest.raises(WeirError, match="'text' was string and is dictionary"):
        out.emit_to("", codes)


def test_more_text_than_a_column_holds_is_sent_in_parts() -> None:
    """An exploding step: 2.2 GB of text for a channel, by one batch of its input. The parts share their memory."""
    part = pa.record_batch({"text": ["x" * (100 << 20)]})
    with pytest.raises(pa.ArrowException, match="offset overflow"):
        pa.concat_batches([part] * 22)
    sent: list[tuple[ChannelId, Message]] = []
    emitter = outputs(sent)
    with emitter.numbering("a", 7):
        for _ in range(22):
            emitter.emit_to("", part)
    assert [message.end for _, message in sent if isinstance(message, Records)] == [-7] * 21 + [7]


@pytest.mark.parametrize(("processed", "raises"), [(3, False), (2, True), (0, False)])
def test_a_failure_between_two_parts_is_noticed(processed: int, raises: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4-45: the receiver has processed some of three parts of a batch; the sender repeats it."""
    monkeypatch.setattr(output, "MAX_JOINED_BYTES", 0)
    sent: list[tuple[ChannelId, Message]] = []
    receipts = Receipts()

    def emit(emitter: Outputs) -> None:
        with emitter.numbering("a", 7):
            for _ in range(3):
                emitter.emit_to("", FIRST)

    emit(outputs(sent))
    channel = sent[0][0]
    for _, message in sent[:processed]:
        assert isinstance(message, Records)
        receipts.on_records(channel, message)
    known = [each.since(0) for each in receipts.processed([channel])]
    rows = {each.channel: RepeatedRows(each.ends, each.rows, each.keys) for each in known}
    sent.clear()
    again = replace(outputs(sent), repeated=rows)
    emit(again)
    assert len(sent) == (0 if processed == 3 else 3)
    barrier = Barrier(CheckpointId(1), CheckpointKind.CHECKPOINT, 0)
    if raises:
        with pytest.raises(RowsNotRepeated, match="2 rows fewer"):
            again.broadcast(barrier)
    else:
        again.broadcast(barrier)
