"""The builder for job authors: a `Dataflow` of named steps, compiled into a `JobGraph` with its code.

The builder collects steps and edges and refuses jobs that cannot run. It starts no job.
    flow = Dataflow("wordcount")
    lines = flow.source("lines", DirectorySource("/in", LineFormat()))
    words = lines.flat_map("words", lambda row: [{"word": w} for w in row["line"].split()], schema)
    words.key_by("word").aggregate("counts", {"count": Count()}).sink("out", ParquetSink("/out"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from math import gcd
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from runtime.core.job.graph import EdgeSpec, Guarantee, Partitioning, Role
from runtime.core.job.guarantee import CheckpointMode, end_to_end_guarantee, is_weaker
from runtime.core.job.ids import OperatorId
from runtime.core.job.key_groups import default_max_parallelism
from runtime.dataflow.plan import CompiledJob, DataflowPlan, PreAggregation, Step
from runtime.errors import JobRejected
from runtime.operators.aggregates import Aggregate, AggregateSet
from runtime.operators.arguments import (
    argument_error,
    check_aggregates,
    check_column,
    check_columns,
    check_expression,
    check_factory,
    check_folder,
    check_function,
    check_parallelism,
    check_schema,
    check_window,
)
from runtime.operators.broadcast_join import BroadcastJoin
from runtime.operators.column_difference import column_difference, columns_of
from runtime.operators.expressions import Filter, Project
from runtime.operators.functions.async_map import AsyncFunction, AsyncMap, RequestLimits, TimeoutFunction
from runtime.operators.functions.batch import FlatMapRows, MapBatches, MapRows
from runtime.operators.functions.co_process import CoProcessFunction, KeyedCoProcessFunction
from runtime.operators.functions.function import BROADCAST_INPUT
from runtime.operators.functions.keyed_process import (
    KeyedBroadcastProcessFunction,
    KeyedInput,
    KeyedProcess,
    KeyedProcessFunction,
)
from runtime.operators.functions.micro_batches import Batches, BatchLimits
from runtime.operators.functions.process import BroadcastProcessFunction, Process, ProcessFunction
from runtime.operators.iterate import Iterate
from runtime.operators.output_tag import OutputTag, check_tags, unknown_output_error
from runtime.operators.paired_keys import check_key_pairs
from runtime.operators.partition import Partitioner
from runtime.operators.running_aggregate import RunningAggregate
from runtime.operators.sink import SinkOperator, WriteThrough
from runtime.operators.union import Union
from runtime.operators.windows.pre_aggregation import WindowPreAggregator
from runtime.operators.windows.sliding import SlidingWindow
from runtime.operators.windows.tumbling import TumblingWindow
from runtime.operators.windows.window import LateOutput, late_columns_error
from runtime.ports import (
    BindsUid,
    DescribesColumns,
    Operator,
    Sink,
    Source,
    StageFolders,
    UsesFolders,
)
from runtime.state.index.key_codec import plain_type
from runtime.state.index.key_types import check_keys

T = TypeVar("T")
BatchFunction = Callable[[pa.RecordBatch], pa.RecordBatch]
RowFunction = Callable[[dict[str, Any]], Iterable[dict[str, Any]]]

#: Set while a pipeline builds its dataflow. A dataflow built elsewhere has no PySpark stages.
STAGE_FOLDERS: Final[ContextVar[StageFolders | None]] = ContextVar("stage_folders", default=None)


@dataclass
class Dataflow:
    """A job under construction.

    Args:
        name: shown in the console; state belongs to the job, not to this name.
        max_parallelism: number of key groups, fixed at the job's first run; None: derived from the parallelism, at
            least 128. A job in the console keeps the number of its first version.
        required_guarantee: "exactly-once", "at-least-once" or "none". A job whose sources and sinks give a weaker
            end-to-end guarantee is refused. By default no record may be lost, and some may be repeated.
    """

    name: str
    max_parallelism: int | None = None
    required_guarantee: str = Guarantee.AT_LEAST_ONCE
    _plan: DataflowPlan = field(default_factory=DataflowPlan)

    def source(self, uid: str, source: Source, *, parallelism: int | None = None, name: str = "") -> Stream:
        """Adds a source. `parallelism` None: the parallelism of the job."""
        source = _bind_stage(uid, source)
        _check_end(uid, source)
        guarantee = _guarantee(uid, source)
        read = self._add(uid, name, Role.SOURCE, parallelism, source, bounded=source.bounded, guarantee=guarantee)
        return replace(read, columns=source.output_columns() if isinstance(source, DescribesColumns) else None)

    @property
    def sources(self) -> Mapping[OperatorId, Source]:
        """Sources by uid."""
        return {step.uid: step.code for step in self._plan.steps if step.role is Role.SOURCE}

    @property
    def sinks(self) -> Mapping[OperatorId, Sink]:
        """Sinks by uid."""
        return dict(self._plan.sinks)

    def compile(self, parallelism: int) -> CompiledJob:
        """Resolves the graph for a parallelism (number of slots). Raises JobRejected naming the operator at fault."""
        groups = default_max_parallelism(parallelism) if self.max_parallelism is None else self.max_parallelism
        self._check_guarantee()
        return self._plan.compile(self.name, parallelism, groups)

    def _check_guarantee(self) -> None:
        """Refuses a job whose sources and sinks give less than the author requires."""
        wanted = _as_guarantee("required_guarantee", self.required_guarantee)
        found = end_to_end_guarantee(CheckpointMode.EXACTLY_ONCE, self._plan.connectors())
        if is_weaker(found.guarantee, wanted):
            accept = f"to accept this, set required_guarantee={str(found.guarantee)!r} in Dataflow"
            raise JobRejected("weak-guarantee", self.name, f"{' '.join(found.reasons)} The job is refused: {accept}")

    def _add(
        self,
        uid: str,
        name: str,
        role: Role,
        parallelism: int | None,
        code: Any,
        bounded: bool = False,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
    ) -> Stream:
        check_parallelism(uid, parallelism)
        step = Step(
            uid=OperatorId(uid),
            name=name or uid,
            role=role,
            parallelism=parallelism,
            bounded=bounded,
            guarantee=guarantee,
            code=code,
        )
        self._plan.steps.append(step)
        return Stream(self, step.uid)

    def _with_columns(self, stream: Stream, columns: pa.Schema | None) -> Stream:
        """The stream, whose batches must have `columns`."""
        if columns is not None:
            check_schema(stream.uid, columns)
            self._plan.columns[stream.uid, stream.output] = columns
        return replace(stream, columns=columns)

    def _with_side_outputs(self, stream: Stream, tags: tuple[OutputTag, ...]) -> Stream:
        """The stream, whose step has side outputs."""
        self._plan.columns |= {(stream.uid, tag.name): tag.schema for tag in tags}
        return replace(stream, side_outputs=tags)

    def _connect(
        self,
        stream: Stream | KeyedStream,
        target: OperatorId,
        partitioning: Partitioning = Partitioning.FORWARD,
        *,
        input: int = 0,
        keys: tuple[str, ...] = (),
        build: bool = False,
        feedback: bool = False,
        pre_aggregation: PreAggregation | None = None,
        value_types: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Adds an edge. FORWARD is replaced by the stream's custom partitioning, if any."""
        if not isinstance(stream, Stream):
            raise JobRejected("bad-input", target, "its input must be a stream without keys: leave out the key_by")
        if stream.flow is not self:
            detail = f"its input {stream.uid!r} belongs to another dataflow, {stream.flow.name!r}"
            raise JobRejected("bad-input", target, detail)
        dealt, partitioner = stream.custom_partitioning, None
        if dealt is not None:
            if partitioning is not Partitioning.FORWARD:
                detail = f"its input uses {partitioning} partitioning: leave out the partition_custom before it"
                raise JobRejected("bad-partitioning", target, detail)
            partitioning, keys, partitioner = Partitioning.CUSTOM, dealt.columns, dealt.function
        edge = EdgeSpec(
            source=stream.uid,
            target=target,
            input=input,
            partitioning=partitioning,
            keys=keys,
            key_types=_key_types(stream, keys, target) if partitioning is Partitioning.HASH else (),
            value_types=value_types,
            build=build,
            feedback=feedback,
            output=stream.output,
        )
        self._plan.connect(edge, partitioner, pre_aggregation)


def _key_types(stream: Stream, keys: tuple[str, ...], target: OperatorId) -> tuple[str, ...]:
    """The types of key columns; empty if the columns of the stream are unknown.

    Raises:
        JobRejected: a column is missing, or its type cannot be a key.
    """
    if stream.columns is None:
        return ()
    check_keys(stream.columns, keys, target)
    return tuple(str(plain_type(stream.columns.field(key).type)) for key in keys)


def _value_types(
    stream: Stream, state: str, aggregates: Mapping[str, Aggregate], target: OperatorId
) -> tuple[tuple[str, str], ...]:
    """The state columns of aggregates and their types; empty if the columns of the stream are unknown.

    Raises:
        JobRejected: an aggregate cannot be computed from the stream's columns.
    """
    columns = stream.columns
    if columns is None:
        return ()
    wanted = AggregateSet(aggregates)
    types = _with_uid_in_errors(target, lambda: wanted.state_types(columns))
    return tuple((f"{state}.{name}", str(kind)) for name, kind in zip(wanted.fields().names, types, strict=True))


def _common_columns(uid: str, streams: Sequence[Stream]) -> pa.Schema | None:
    """The columns of all `streams`; None: unknown for all. Raises JobRejected if known columns differ."""
    known = [stream for stream in streams if stream.columns is not None]
    if not known:
        return None
    first = known[0]
    wanted = columns_of(first.columns)
    for other in known[1:]:
        if list(wanted.items()) != list((found := columns_of(other.columns)).items()):
            detail = f"the columns of {other.uid!r} differ from the columns of {first.uid!r}: "
            advice = "; make them equal with select"
            raise JobRejected("wrong-columns", uid, detail + column_difference(wanted, found) + advice)
    return first.columns


def _check_late_columns(uid: str, late: OutputTag, stream: Stream) -> None:
    """Raises JobRejected if the columns of a side output for late rows are not those of the input, if known."""
    check_tags(uid, [late])
    columns = stream.columns
    if columns is not None and (error := late_columns_error(late, columns)) is not None:
        raise JobRejected(error.code, uid, error.detail)


def _check_end(uid: str, end: Source | Sink) -> None:
    """Checks the settings and folders of a source or sink. Raises JobRejected naming the field at fault."""
    end.check()
    if isinstance(end, UsesFolders):
        for name, path in end.folders().items():
            check_folder(uid, name, path)


def _validate_factory(uid: str, make: Callable[[], Operator]) -> Callable[[], Operator]:
    """Calls `make` once, so that bad arguments fail before the start, and returns it. Only for code of Weir itself."""
    _with_uid_in_errors(uid, make)
    return make


def _with_uid_in_errors(uid: str, make: Callable[[], T]) -> T:
    """The result of `make`. If `make` raises JobRejected, the error is raised again with `uid` as its field."""
    try:
        return make()
    except JobRejected as error:
        raise JobRejected(error.code, uid, str(error)) from error


def _bind_stage(uid: str, end: T) -> T:
    """`end` bound to the folders of its PySpark stage, if it has such a stage."""
    folders = STAGE_FOLDERS.get()
    return end.bind(uid, folders) if folders is not None and isinstance(end, BindsUid) else end


def _guarantee(uid: str, end: Source | Sink) -> Guarantee:
    return _as_guarantee(uid, end.guarantee)


def _as_guarantee(field: str, text: str) -> Guarantee:
    try:
        return Guarantee(text)
    except ValueError as error:
        known = ", ".join(Guarantee)
        raise JobRejected("bad-guarantee", field, f"guarantee must be one of {known}, not {text!r}") from error


@dataclass(frozen=True)
class _CustomPartitioning:
    """Custom partitioning by columns and an author's function."""

    columns: tuple[str, ...]
    function: Partitioner


@dataclass(frozen=True)
class Stream:
    """The output of a step."""

    flow: Dataflow
    uid: OperatorId
    custom_partitioning: _CustomPartitioning | None = None  #: custom partitioning to the next step
    columns: pa.Schema | None = None  #: None: the step does not declare its columns
    side_outputs: tuple[OutputTag, ...] = ()  #: further outputs of the step
    output: str = ""  #: name of the side output that this stream is; "": the main output

    def side_output(self, tag: OutputTag) -> Stream:
        """The rows that the step emits to `tag`: a stream like any other. Rows that no step reads are dropped.

        Raises:
            JobRejected: the step does not declare this side output.
        """
        if tag not in self.side_outputs:
            raise unknown_output_error(self.uid, tag.name, [each.name for each in self.side_outputs])
        return Stream(self.flow, self.uid, columns=tag.schema, output=tag.name)

    def map_batches(self, uid: str, function: BatchFunction, *, parallelism: int | None = None) -> Stream:
        """Applies `function` to every Arrow batch (filter, project, compute). An empty result is not forwarded."""
        check_function(uid, function)
        return self._then(uid, lambda: MapBatches(function), parallelism)

    def filter(self, uid: str, expression: pc.Expression, *, parallelism: int | None = None) -> Stream:
        """Forwards the rows for which an Arrow expression is true, such as `pc.field("fare") > 0`. Null is not true.

        Expressions are checked now if the columns of the stream are known, otherwise at the first batch.
        """
        check_expression(uid, "expression", expression)
        return self._then_expression(uid, Filter(expression), parallelism)

    def select(self, uid: str, /, *names: str, parallelism: int | None = None, **columns: pc.Expression) -> Stream:
        """The columns `names`, then a column per Arrow expression, such as `euros=pc.field("fare") * 0.92`."""
        check_columns(uid, "names", names)
        return self._project(uid, {name: pc.field(name) for name in names}, columns, False, parallelism)

    def with_columns(self, uid: str, /, *, parallelism: int | None = None, **columns: pc.Expression) -> Stream:
        """All columns, and a column per Arrow expression. A column of the same name is replaced where it stands."""
        return self._project(uid, {}, columns, True, parallelism)

    def map(
        self,
        uid: str,
        function: Callable[[dict[str, Any]], dict[str, Any]],
        schema: pa.Schema,
        *,
        parallelism: int | None = None,
    ) -> Stream:
        """Applies a row-wise Python function that returns one row of `schema`."""
        check_function(uid, function)
        check_schema(uid, schema)
        return self._then(uid, lambda: MapRows(function, schema), parallelism, schema)

    def flat_map(self, uid: str, function: RowFunction, schema: pa.Schema, *, parallelism: int | None = None) -> Stream:
        """Applies a row-wise Python function that returns any number of rows of `schema`."""
        check_function(uid, function, rows=True)
        check_schema(uid, schema)
        return self._then(uid, lambda: FlatMapRows(function, schema), parallelism, schema)

    def join_broadcast(
        self, uid: str, build: Stream, *, on: Sequence[str], take: Sequence[str], how: str = "inner"
    ) -> Stream:
        """Joins with a bounded stream that every subtask holds as a whole.

        Sources of this stream are read after the end of `build`. Checkpoints complete while `build` is read.

        Args:
            on: key columns, with the same names on both sides; keys of `build` must be unique.
            take: columns of `build` to add.
            how: "inner" or "left".
        """
        check_columns(uid, "on", on)
        check_columns(uid, "take", take)
        keys, columns = tuple(on), tuple(take)
        joined = self._then(uid, _validate_factory(uid, lambda: BroadcastJoin(keys, columns, how)), None)
        self.flow._connect(build, joined.uid, Partitioning.BROADCAST, input=1, build=True)
        return joined

    def union(self, uid: str, *others: Stream, parallelism: int | None = None) -> Stream:
        """The rows of this stream and of `others`, which must have the same columns in the same order.

        Rows of a stream stay in order. Event time is the minimum of the streams, so an idle stream needs idleness.
        """
        if not others:
            raise JobRejected("bad-input", uid, "a union needs at least one other stream")
        made = self._then(uid, Union, parallelism)
        for number, other in enumerate(others, 1):
            self.flow._connect(other, made.uid, input=number)
        return self.flow._with_columns(made, _common_columns(uid, (self, *others)))

    def iterate(self, uid: str, *, parallelism: int | None = None) -> IterativeStream:
        """Opens a loop: the next steps read this stream and the streams passed to `close_with`.

        A bounded or drained job ends once no records are in flight in the loop. Watermarks in a loop are the watermarks
        of the loop's input.
        """
        head = self._then(uid, Iterate, parallelism)
        self.flow._plan.loops.append(head.uid)
        return IterativeStream(self.flow, head.uid, columns=self.columns)

    def process(
        self,
        uid: str,
        function_factory: Callable[[], ProcessFunction],
        schema: pa.Schema,
        *,
        side_outputs: Sequence[OutputTag] = (),
        parallelism: int | None = None,
    ) -> Stream:
        """Applies a row-wise function with state and timers per subtask; see `ProcessFunction`.

        Args:
            function_factory: creates the function of each subtask; usually its class.
            schema: schema of the output rows; missing columns are null, unknown columns are refused.
            side_outputs: further outputs; see `OutputTag`.
        """
        check_factory(uid, function_factory, ProcessFunction, ": a keyed function needs key_by")
        check_schema(uid, schema)
        tags = check_tags(uid, side_outputs)
        made = self._then(uid, lambda: Process(function_factory(), schema, tags), parallelism, schema)
        return self.flow._with_side_outputs(made, tags)

    def transform(
        self,
        uid: str,
        operator_factory: Callable[[], Operator],
        schema: pa.Schema | None = None,
        *,
        side_outputs: Sequence[OutputTag] = (),
        parallelism: int | None = None,
    ) -> Stream:
        """Applies an author's own operator to Arrow batches: every hook of the runtime is open to it.

        Use the simplest step that suffices: `map_batches` for a function without state; `process` for rows with state
        and timers, which are stored and restored for the author; `transform` where rows are too slow and batches need
        state, or where output must precede the barrier, end the input or follow the watermark. See `weir.spi.Operator`.
        Output is accepted only in hooks that get a collector.

        Args:
            operator_factory: creates the operator of each subtask; usually its class.
            schema: columns of the output, if they are the same for every input; checked at the first batch.
            side_outputs: further outputs; the operator calls `out.emit_to(tag.name, batch)`.
        """
        check_factory(uid, operator_factory, Operator, argument="operator_factory")
        tags = check_tags(uid, side_outputs)
        made = self._then(uid, operator_factory, parallelism, schema)
        return self.flow._with_side_outputs(self.flow._with_columns(made, schema), tags)

    def async_map(
        self,
        uid: str,
        function: AsyncFunction,
        schema: pa.Schema,
        *,
        capacity: int = 100,
        timeout_ms: int = 10_000,
        ordered: bool = True,
        on_timeout: TimeoutFunction | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Applies an asynchronous row function to many rows at a time; see `AsyncMap`.

        Args:
            function: `async def`; maps a row (dict) to any number of rows of `schema`.
            capacity: maximum number of requests in flight per subtask; beyond that the input waits.
            timeout_ms: time limit of a request.
            ordered: emit results in the order of the input rows; otherwise as they complete.
            on_timeout: rows to emit for a request that timed out; None: the operator fails.
        """
        check_function(uid, function, asynchronous=True)
        check_schema(uid, schema)
        limits = _with_uid_in_errors(uid, lambda: RequestLimits(capacity, timeout_ms))
        return self._then(uid, lambda: AsyncMap(function, schema, limits, ordered, on_timeout), parallelism, schema)

    def connect_broadcast(
        self,
        uid: str,
        rules: Stream,
        function_factory: Callable[[], BroadcastProcessFunction],
        schema: pa.Schema,
        *,
        side_outputs: Sequence[OutputTag] = (),
        parallelism: int | None = None,
    ) -> Stream:
        """Like `process`, with a second stream whose rows every subtask gets in `process_broadcast`."""
        check_factory(uid, function_factory, BroadcastProcessFunction, ": a keyed function needs key_by")
        joined = self.process(uid, function_factory, schema, side_outputs=side_outputs, parallelism=parallelism)
        self.flow._connect(rules, joined.uid, Partitioning.BROADCAST, input=BROADCAST_INPUT)
        return joined

    def connect(self, other: Stream) -> ConnectedStreams:
        """This stream and `other`, for a function with a hook per stream and state that both hooks share."""
        return ConnectedStreams(self, other)

    def key_by(self, *columns: str) -> KeyedStream:
        """Partitions by the values of `columns`."""
        if not columns:
            raise JobRejected("bad-keys", self.uid, "key_by needs at least one column")
        for column in columns:
            check_column(self.uid, "key_by", column)
        return KeyedStream(self, columns)

    def partition_custom(self, function: Partitioner, *columns: str) -> Stream:
        """Has `function` choose the subtask of the next step for each row.

        The stream has no key, so the next step has no keyed state: use list state, or a union list if a restore
        must assign values to subtasks as the function does.

        Args:
            function: maps a batch of `columns` and the number of subtasks to a subtask index (from 0) per row.
        """
        if not columns:
            raise JobRejected("bad-keys", self.uid, "partition_custom needs at least one column")
        for column in columns:
            check_column(self.uid, "partition_custom", column)
        return replace(self, custom_partitioning=_CustomPartitioning(columns, function))

    def write_through(self, uid: str, sink: Sink, *, parallelism: int | None = None, name: str = "") -> Stream:
        """Writes the rows to `sink` with two-phase commit, as at the end of a stream, and returns them as a stream.

        The next steps receive a row before its checkpoint completes, so a row may reach them that is visible in the
        target only later. A bounded job commits all its sinks with a single checkpoint, however many follow each other.
        """
        return self._write(uid, sink, Role.OPERATOR, WriteThrough, parallelism, name)

    def sink(self, uid: str, sink: Sink, *, parallelism: int | None = None, name: str = "") -> None:
        """Ends the stream in a sink."""
        self._write(uid, sink, Role.SINK, SinkOperator, parallelism, name)

    def _write(
        self, uid: str, sink: Sink, role: Role, operator: type[SinkOperator], parallelism: int | None, name: str
    ) -> Stream:
        sink = _bind_stage(uid, sink)
        _check_end(uid, sink)
        guarantee = _guarantee(uid, sink)
        end = self.flow._add(uid, name, role, parallelism, lambda: operator(sink), guarantee=guarantee)
        self.flow._plan.sinks[end.uid] = sink
        self.flow._connect(self, end.uid)
        return replace(end, columns=self.columns)

    def _project(
        self,
        uid: str,
        kept: dict[str, pc.Expression],
        computed: Mapping[str, pc.Expression],
        keeps_input: bool,
        parallelism: int | None,
    ) -> Stream:
        for name, expression in computed.items():
            check_expression(uid, name, expression)
            if name in kept:
                raise JobRejected("duplicate-column", uid, f"two output columns have the name {name!r}")
        if not kept and not computed:
            raise JobRejected("bad-columns", uid, "it needs at least one column")
        return self._then_expression(uid, Project({**kept, **computed}, keeps_input=keeps_input), parallelism)

    def _then_expression(self, uid: str, operator: Filter | Project, parallelism: int | None) -> Stream:
        columns = self.columns
        after = None if columns is None else _with_uid_in_errors(uid, lambda: operator.columns_after(columns))
        return self._then(uid, lambda: operator, parallelism, after)

    def _then(
        self, uid: str, make: Callable[[], Operator], parallelism: int | None, columns: pa.Schema | None = None
    ) -> Stream:
        after = self.flow._add(uid, "", Role.OPERATOR, parallelism, make)
        self.flow._connect(self, after.uid)
        return replace(after, columns=columns)


@dataclass(frozen=True)
class IterativeStream(Stream):
    """The head of a loop."""

    def close_with(self, stream: Stream) -> None:
        """Feeds `stream`, which must descend from this head and have its columns, back into the head.

        May be called again with another stream.
        """
        before = self.flow._plan.back_edge_count(self.uid)
        self.flow._connect(stream, self.uid, input=before + 1, feedback=True)


@dataclass(frozen=True)
class KeyedStream:
    """A stream partitioned by key group."""

    stream: Stream
    keys: tuple[str, ...]

    def window(
        self,
        uid: str,
        size: timedelta,
        time: str,
        aggregates: Mapping[str, Aggregate],
        *,
        slide: timedelta | None = None,
        late_to: OutputTag | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Event-time windows aligned to the epoch.

        Output columns: the keys, `window_start`, `window_end` (timestamp[ms]), then a column per aggregate.

        Args:
            time: name of the column of event times (timestamp, date, or integer milliseconds).
            slide: distance between the starts of two consecutive windows, which may overlap; None: `size`.
            late_to: side output for late rows: rows whose last window has fired (Flink: `sideOutputLateData`). They
                keep the columns of the input. Rows are then not aggregated before the shuffle. None: late rows are
                counted and dropped.
        """
        check_column(uid, "time", time)
        check_aggregates(uid, aggregates)
        keys, wanted, (size_ms, slide_ms) = self.keys, dict(aggregates), check_window(uid, size, slide)
        pane_ms = gcd(size_ms, slide_ms)
        combiner = partial(WindowPreAggregator, keys, time, pane_ms, wanted)
        pre_aggregation = PreAggregation(
            pane_ms, combiner, time=time, size_ms=size_ms, slide_ms=slide_ms, in_window=late_to is not None
        )
        late = None if late_to is None else LateOutput(late_to, time, pane_ms, combiner)
        if late_to is not None:
            _check_late_columns(uid, late_to, self.stream)
        if slide_ms == size_ms:
            tumbling = _validate_factory(uid, lambda: TumblingWindow(keys, size_ms, wanted, late))
            made = self._then(uid, tumbling, parallelism, pre_aggregation, ("windows", wanted))
        else:
            sliding = _validate_factory(uid, lambda: SlidingWindow(keys, size_ms, slide_ms, wanted, late))
            made = self._then(uid, sliding, parallelism, pre_aggregation, ("panes", wanted))
        return self.stream.flow._with_side_outputs(made, () if late_to is None else (late_to,))

    def aggregate(
        self,
        uid: str,
        aggregates: Mapping[str, Aggregate],
        *,
        changelog: bool = False,
        parallelism: int | None = None,
    ) -> Stream:
        """Running aggregates; each batch emits the new values of its keys.

        Args:
            changelog: emit inserts and updates, with the row kind in column `op`; see `RunningAggregate`.
        """
        check_aggregates(uid, aggregates)
        keys, wanted = self.keys, dict(aggregates)
        running = _validate_factory(uid, lambda: RunningAggregate(keys, wanted, changelog))
        return self._then(uid, running, parallelism, state=("aggregates", wanted))

    def batches(
        self,
        uid: str,
        function: BatchFunction,
        *,
        max_rows: int,
        max_wait_ms: int | None = None,
        flush_on_barrier: bool = False,
        parallelism: int | None = None,
    ) -> Stream:
        """Applies `function` to batches of rows of many keys, in order within each key.

        A batch is emitted at `max_rows` rows, or when its first row has waited `max_wait_ms`. Without a time limit
        (None) it is emitted only when it is full, or at the end of the input. No batch is empty or above `max_rows`.

        Args:
            flush_on_barrier: buffered rows are also emitted before each barrier. Snapshots then hold no rows, but the
                barrier waits for `function`, and frequent checkpoints make small batches. Otherwise buffered rows are
                part of the snapshot.
        """
        check_function(uid, function)
        limits = _with_uid_in_errors(uid, lambda: BatchLimits(max_rows, max_wait_ms, flush_on_barrier))
        keys = self.keys
        return self._then(uid, lambda: Batches(keys, function, limits), parallelism)

    def process(
        self,
        uid: str,
        function_factory: Callable[[], KeyedProcessFunction],
        schema: pa.Schema,
        *,
        time: str | None = None,
        side_outputs: Sequence[OutputTag] = (),
        parallelism: int | None = None,
    ) -> Stream:
        """Applies a row-wise function with state and timers per key; see `KeyedProcessFunction`.

        Args:
            function_factory: creates the function of each subtask; usually its class.
            schema: schema of the output rows; missing columns are null, unknown columns are refused.
            time: column of event times, for `context.timestamp`.
            side_outputs: further outputs; see `OutputTag`.
        """
        check_factory(uid, function_factory, KeyedProcessFunction)
        check_schema(uid, schema)
        if time is not None:
            check_column(uid, "time", time)
        keys, tags = self.keys, check_tags(uid, side_outputs)
        made = self._then(uid, lambda: KeyedProcess(function_factory(), keys, schema, time, tags), parallelism)
        return self.stream.flow._with_side_outputs(replace(made, columns=schema), tags)

    def transform(
        self,
        uid: str,
        operator_factory: Callable[[], Operator],
        schema: pa.Schema | None = None,
        *,
        side_outputs: Sequence[OutputTag] = (),
        parallelism: int | None = None,
    ) -> Stream:
        """As `Stream.transform`, with all rows of a key in the same subtask.

        State that must follow its keys at a rescale is declared by `keyed_table` or `object_table`.
        """
        check_factory(uid, operator_factory, Operator, argument="operator_factory")
        flow, tags = self.stream.flow, check_tags(uid, side_outputs)
        made = replace(self._then(uid, operator_factory, parallelism), columns=schema)
        return flow._with_side_outputs(flow._with_columns(made, schema), tags)

    def connect_broadcast(
        self,
        uid: str,
        rules: Stream,
        function_factory: Callable[[], KeyedBroadcastProcessFunction],
        schema: pa.Schema,
        *,
        time: str | None = None,
        side_outputs: Sequence[OutputTag] = (),
        parallelism: int | None = None,
    ) -> Stream:
        """Like `process`, with a second stream whose rows every subtask gets in `process_broadcast`."""
        check_factory(uid, function_factory, KeyedBroadcastProcessFunction)
        joined = self.process(
            uid, function_factory, schema, time=time, side_outputs=side_outputs, parallelism=parallelism
        )
        self.stream.flow._connect(rules, joined.uid, Partitioning.BROADCAST, input=BROADCAST_INPUT)
        return joined

    def connect(self, other: KeyedStream) -> ConnectedKeyedStreams:
        """As `Stream.connect`; `other` needs keys of the same number and types, whose names may differ."""
        return ConnectedKeyedStreams(self, other)

    def _then(
        self,
        uid: str,
        make: Callable[[], Operator],
        parallelism: int | None,
        pre_aggregation: PreAggregation | None = None,
        state: tuple[str, Mapping[str, Aggregate]] | None = None,
    ) -> Stream:
        """Adds an operator behind a hash edge. `state`: name of its keyed table, and the aggregates in the table."""
        flow = self.stream.flow
        after = flow._add(uid, "", Role.OPERATOR, parallelism, make)
        types = () if state is None else _value_types(self.stream, *state, after.uid)
        flow._connect(
            self.stream,
            after.uid,
            Partitioning.HASH,
            keys=self.keys,
            pre_aggregation=pre_aggregation,
            value_types=types,
        )
        return after


@dataclass(frozen=True)
class ConnectedStreams:
    """Two streams without keys."""

    first: Stream
    second: Stream

    def process(
        self,
        uid: str,
        function_factory: Callable[[], CoProcessFunction],
        schema: pa.Schema,
        *,
        side_outputs: Sequence[OutputTag] = (),
        parallelism: int | None = None,
    ) -> Stream:
        """Applies a row-wise function with a hook per stream; otherwise as `Stream.process`."""
        check_factory(uid, function_factory, CoProcessFunction, ": a keyed function needs key_by")
        check_schema(uid, schema)
        flow, tags = self.first.flow, check_tags(uid, side_outputs)
        made = flow._add(uid, "", Role.OPERATOR, parallelism, lambda: Process(function_factory(), schema, tags))
        flow._connect(self.first, made.uid)
        flow._connect(self.second, made.uid, input=1)
        return flow._with_side_outputs(replace(made, columns=schema), tags)


@dataclass(frozen=True)
class ConnectedKeyedStreams:
    """Two streams with keys: rows with equal keys are processed by the same subtask."""

    first: KeyedStream
    second: KeyedStream

    def process(
        self,
        uid: str,
        function_factory: Callable[[], KeyedCoProcessFunction],
        schema: pa.Schema,
        *,
        time: tuple[str, str] | None = None,
        side_outputs: Sequence[OutputTag] = (),
        parallelism: int | None = None,
    ) -> Stream:
        """Applies a row-wise function with a hook per stream; otherwise as `KeyedStream.process`.

        Args:
            time: the columns of event times of the first and second stream, for `context.timestamp`.
        """
        check_factory(uid, function_factory, KeyedCoProcessFunction)
        check_schema(uid, schema)
        check_keyed(uid, self.second)
        first_time, second_time = _check_times(uid, time)
        tags = check_tags(uid, side_outputs)
        keys, second = self.first.keys, KeyedInput(self.second.keys, second_time)
        made = connect_keyed(
            uid,
            self.first,
            self.second,
            lambda: KeyedProcess(function_factory(), keys, schema, first_time, tags, second),
            parallelism,
        )
        return self.first.stream.flow._with_side_outputs(replace(made, columns=schema), tags)


def connect_keyed(
    uid: str, first: KeyedStream, second: KeyedStream, make: Callable[[], object], parallelism: int | None
) -> Stream:
    """Adds an operator with two inputs behind hash edges. Raises JobRejected: the keys do not fit each other."""
    check_key_pairs(uid, first.keys, second.keys, first.stream.columns, second.stream.columns)
    flow = first.stream.flow
    made = flow._add(uid, "", Role.OPERATOR, parallelism, make)
    for number, each in enumerate((first, second)):
        flow._connect(each.stream, made.uid, Partitioning.HASH, input=number, keys=each.keys)
    return made


def check_keyed(uid: str, stream: object) -> None:
    """Raises JobRejected if the second stream of an operator has no keys."""
    if not hasattr(stream, "keys"):
        raise JobRejected("bad-input", uid, "both streams need keys: use key_by")


def _check_times(uid: str, time: object) -> tuple[str | None, str | None]:
    if time is None:
        return None, None
    if not isinstance(time, tuple) or len(time) != 2:
        raise argument_error(uid, "time", f"must name a column of each stream, as a tuple of two, not {time!r}")
    for name in time:
        check_column(uid, "time", name)
    return time
