"""Streams without keys: the output of a step, and the steps that may follow it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from runtime.core.job.graph import Partitioning, Role
from runtime.core.job.ids import OperatorId
from runtime.dataflow.checks import check_policy, common_columns, with_uid_in_errors
from runtime.dataflow.connected_streams import ConnectedStreams
from runtime.dataflow.connectors import guarantee_of, prepare_connector
from runtime.dataflow.functions import add_function, add_transform
from runtime.dataflow.inputs import Changelog, ChangelogUse, CustomPartitioning, StepInput, rules_input
from runtime.dataflow.keyed_stream import KeyedStream
from runtime.dataflow.used_columns import ColumnUse, columns_of_expressions
from runtime.dataflow.versioned_table import VersionedTable
from runtime.errors import JobRejected
from runtime.operators.arguments import (
    check_column,
    check_columns,
    check_expression,
    check_function,
    check_interval,
    check_schema,
)
from runtime.operators.broadcast_join import ROWS_COLUMN, VERSION_COLUMN, BroadcastJoin
from runtime.operators.expressions import Filter, Project, names_column
from runtime.operators.functions.async_map import AsyncFunction, AsyncMap, RequestLimits, TimeoutFunction
from runtime.operators.functions.batch import FlatMapRows, MapBatches, MapRows
from runtime.operators.functions.process import BroadcastProcessFunction, Process, ProcessFunction
from runtime.operators.functions.set_aside import DEAD_LETTERS, Bisect, SetAsideRows
from runtime.operators.iterate import Iterate
from runtime.operators.output_tag import OutputTag, unknown_output_error
from runtime.operators.partition import Partitioner
from runtime.operators.retraction import OP_COLUMN
from runtime.operators.sink import SinkOperator, WriteThrough
from runtime.operators.union import Union
from runtime.ports import BindsUid, ChecksColumns, ErrorPolicy, HasParts, Operator, Sink

if TYPE_CHECKING:
    from runtime.dataflow.builder import Dataflow

BatchFunction = Callable[[pa.RecordBatch], pa.RecordBatch]
RowFunction = Callable[[dict[str, Any]], Iterable[dict[str, Any]]]


@dataclass(frozen=True)
class Stream:
    """The output of a step."""

    flow: Dataflow
    uid: OperatorId
    custom_partitioning: CustomPartitioning | None = None  #: custom partitioning to the next step
    columns: pa.Schema | None = None  #: None: the step does not declare its columns
    side_outputs: tuple[OutputTag, ...] = ()  #: further outputs of the step
    output: str = ""  #: name of the side output that this stream is; "": the main output
    changelog: Changelog | None = None  #: the column `op` marks rows that take back earlier rows
    forwarded_changelog: Changelog | None = None  #: the step gets it, and may emit its rows: also to a side output

    def with_declared_columns(self, columns: pa.Schema | None) -> Self:
        """The stream with these columns. Without the column `op` it is no changelog. None: unknown."""
        has_kinds = columns is None or OP_COLUMN in columns.names
        return replace(self, columns=columns, changelog=self.changelog if has_kinds else None)

    def side_output(self, tag: OutputTag) -> Stream:
        """The rows that the step emits to `tag`: a stream like any other. Rows that no step reads are dropped.

        Raises:
            JobRejected: the step does not declare this side output.
        """
        if tag not in self.side_outputs:
            raise unknown_output_error(self.uid, tag.name, [each.name for each in self.side_outputs])
        side = Stream(self.flow, self.uid, output=tag.name, changelog=self.forwarded_changelog)
        return side.with_declared_columns(tag.schema)

    def map_batches(
        self,
        uid: str,
        function: BatchFunction,
        *,
        on_error: ErrorPolicy | None = None,
        parallelism: int | None = None,
        repeatable: bool = False,
    ) -> Stream:
        """Applies `function` to every Arrow batch (filter, project, compute). An empty result is not forwarded.

        Args:
            on_error: `weir.SetAside(folder)`: rows for which the function raises become dead letters. A batch that
                raises is halved until these rows are alone, so the function must be `repeatable`. None: the job fails.
            repeatable: each output row depends on its input row alone: not on other rows or earlier calls, on chance,
                the time or an outside system. Then steps behind a shuffle can keep their state after a failure, unless
                rows may be set aside.
        """
        check_function(uid, function)
        if on_error is not None and not repeatable:
            detail = "a batch that raises is run again in parts: on_error needs repeatable=True, or map in its place"
            raise JobRejected("not-repeatable", uid, detail)
        return self._then_stateless(
            uid, lambda letters: _bisect(MapBatches(function), letters), parallelism, None, on_error, repeatable
        )

    def filter(
        self,
        uid: str,
        expression: pc.Expression,
        *,
        on_error: ErrorPolicy | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Forwards the rows for which an Arrow expression is true, such as `pc.field("fare") > 0`. Null is not true.

        Expressions are checked now if the columns of the stream are known, otherwise at the first batch. `on_error`:
        see `map_batches`.
        """
        check_expression(uid, "expression", expression)
        use = columns_of_expressions(self.columns, [expression], forwards=True)
        changelog = _use_of_changelog([expression])
        return self._then_expression(uid, Filter(expression), parallelism, use, changelog, on_error)

    def select(
        self,
        uid: str,
        /,
        *names: str,
        on_error: ErrorPolicy | None = None,
        parallelism: int | None = None,
        **columns: pc.Expression,
    ) -> Stream:
        """The columns `names`, then a column per Arrow expression, such as `euros=pc.field("fare") * 0.92`.

        `on_error`: see `map_batches`.
        """
        check_columns(uid, "names", names)
        return self._project(uid, {name: pc.field(name) for name in names}, columns, False, parallelism, on_error)

    def with_columns(
        self,
        uid: str,
        /,
        *,
        on_error: ErrorPolicy | None = None,
        parallelism: int | None = None,
        **columns: pc.Expression,
    ) -> Stream:
        """All columns, and a column per Arrow expression. A column of the same name is replaced where it stands.

        `on_error`: see `map_batches`.
        """
        return self._project(uid, {}, columns, True, parallelism, on_error)

    def map(
        self,
        uid: str,
        function: Callable[[dict[str, Any]], dict[str, Any]],
        schema: pa.Schema,
        *,
        on_error: ErrorPolicy | None = None,
        parallelism: int | None = None,
        repeatable: bool = False,
    ) -> Stream:
        """Applies a row-wise Python function that returns one row of `schema`.

        Args:
            on_error: `weir.SetAside(folder)`: a row for which the function raises, or returns a row that does not fit
                `schema`, becomes a dead letter. None: the job fails.
            repeatable: see `map_batches`.
        """
        check_function(uid, function)
        check_schema(uid, schema)
        make = partial(MapRows, function, schema)
        return self._then_stateless(uid, make, parallelism, schema, on_error, repeatable)

    def flat_map(
        self,
        uid: str,
        function: RowFunction,
        schema: pa.Schema,
        *,
        on_error: ErrorPolicy | None = None,
        parallelism: int | None = None,
        repeatable: bool = False,
    ) -> Stream:
        """Applies a row-wise Python function that returns any number of rows of `schema`.

        Args:
            on_error: see `map`. With it, the rows that the function returns for a row are collected before any is
                emitted.
            repeatable: see `map_batches`.
        """
        check_function(uid, function, rows=True)
        check_schema(uid, schema)
        make = partial(FlatMapRows, function, schema)
        return self._then_stateless(uid, make, parallelism, schema, on_error, repeatable)

    def join_broadcast(
        self,
        uid: str,
        build: Stream,
        *,
        on: Sequence[str],
        take: Sequence[str],
        how: str = "inner",
        refresh: timedelta | None = None,
    ) -> Stream:
        """Joins with a bounded stream that every subtask holds as a whole.

        Sources of this stream are read after the end of `build`. Checkpoints complete while `build` is read.

        Args:
            on: key columns, with the same names on both sides; keys of `build` must be unique.
            take: columns of `build` to add.
            how: "inner" or "left".
            refresh: reads the source of `build` again after this time, and so on; each version replaces the one before
                as a whole. `build` is then the stream of a source, without steps behind it. The step that reads the
                versions has the uid `{uid}.refresh`. The job has no end, and a version that cannot be read is left out.
                None: `build` is read once.
        """
        check_columns(uid, "on", on)
        check_columns(uid, "take", take)
        keys, columns = tuple(on), tuple(take)
        create = partial(BroadcastJoin, keys, columns, how, refresh is not None)
        join = with_uid_in_errors(uid, create)
        use = ColumnUse(frozenset({*keys, *columns}))
        build_side = StepInput(stream=build, partitioning=Partitioning.BROADCAST, build=True, use=use)
        probe_use = ColumnUse(frozenset({*keys, *columns}), forwards=True)
        probe_side = StepInput(stream=self, use=probe_use, takes_encoded_texts=True, changelog=ChangelogUse.FORWARDED)
        inputs = [probe_side, build_side]
        if refresh is not None:
            versions = self._versions_of(uid, build, check_interval(uid, "refresh", refresh))
            refresh_use = ColumnUse(frozenset({*keys, *columns, VERSION_COLUMN, ROWS_COLUMN}))
            inputs.append(StepInput(stream=versions, partitioning=Partitioning.BROADCAST, use=refresh_use))
        joined = self.flow._add_operator(uid, create, inputs)
        with_uid_in_errors(uid, lambda: join.check_columns(self.columns, build.columns))
        return joined

    def _versions_of(self, uid: str, build: Stream, interval_ms: int) -> Stream:
        """The later versions of the table `build`. Raises JobRejected: `build` is not the stream of a source."""
        table = self.flow.sources.get(build.uid)
        if build.flow is not self.flow or table is None:
            detail = f"the source of its build side is read again, and {build.uid!r} is no source"
            advice = "join with the source itself, and compute behind the join"
            raise JobRejected("bad-refresh", uid, f"refresh: {detail}: {advice}")
        if isinstance(table, BindsUid):
            detail = f"{type(table).__name__} has a PySpark stage that runs once"
            raise JobRejected("bad-refresh", uid, f"refresh: {detail}: let Spark write files, and read their folder")
        if isinstance(table, HasParts):
            detail = "a history and a live source are read once, one after the other"
            raise JobRejected("bad-refresh", uid, f"refresh: {detail}: join with one of them")
        name = f"versions of {build.uid}"
        return self.flow.source(f"{uid}.refresh", VersionedTable(table, interval_ms), parallelism=1, name=name)

    def union(self, uid: str, *streams: Stream, parallelism: int | None = None) -> Stream:
        """The rows of this stream and of `streams`, which must have the same columns in the same order.

        Rows of a stream stay in order. Event time is the minimum of the streams, so an idle stream needs idleness.
        """
        if not streams:
            raise JobRejected("bad-input", uid, "a union needs at least one other stream")
        inputs = [StepInput(stream=each, changelog=ChangelogUse.FORWARDED) for each in (self, *streams)]
        stream = self.flow._add_operator(uid, Union, inputs, parallelism)
        return self.flow._with_columns(
            stream, common_columns(uid, [(each.uid, each.columns) for each in (self, *streams)])
        )

    def iterate(self, uid: str, *, parallelism: int | None = None) -> IterativeStream:
        """Opens a loop: the next steps read this stream and the streams passed to `close_with`.

        A bounded or drained job ends once no records are in flight in the loop. Watermarks in a loop are the watermarks
        of the loop's input.
        """
        head = self._then(uid, Iterate, parallelism)
        self.flow._plan.loops.append(head.uid)
        return IterativeStream(self.flow, head.uid, columns=self.columns, changelog=self.changelog)

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
        return add_function(
            uid,
            ProcessFunction,
            function_factory,
            lambda function, tags: Process(function, schema, tags),
            schema,
            side_outputs,
            [StepInput(stream=self, changelog=ChangelogUse.FORWARDED)],
            parallelism,
        )

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
        source = StepInput(stream=self, changelog=ChangelogUse.FORWARDED)
        return add_transform(uid, operator_factory, schema, side_outputs, source, parallelism)

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
        limits = with_uid_in_errors(uid, lambda: RequestLimits(capacity, timeout_ms))
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
        return add_function(
            uid,
            BroadcastProcessFunction,
            function_factory,
            lambda function, tags: Process(function, schema, tags),
            schema,
            side_outputs,
            [StepInput(stream=self, changelog=ChangelogUse.FORWARDED), rules_input(rules)],
            parallelism,
        )

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
        return replace(self, custom_partitioning=CustomPartitioning(columns, function))

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
        sink = prepare_connector(uid, "sink", sink)
        if self.columns is not None and isinstance(sink, ChecksColumns):
            with_uid_in_errors(uid, partial(sink.check_columns, self.columns))
        guarantee = guarantee_of(uid, sink)
        end = self.flow._add(uid, name, role, parallelism, lambda: operator(sink), guarantee=guarantee)
        self.flow._plan.sinks[end.uid] = sink
        self.flow._connect(end.uid, StepInput(stream=self, changelog=ChangelogUse.FORWARDED))
        return replace(end, columns=self.columns, changelog=self.changelog)

    def _project(
        self,
        uid: str,
        columns: dict[str, pc.Expression],
        computed: Mapping[str, pc.Expression],
        keeps_input: bool,
        parallelism: int | None,
        on_error: ErrorPolicy | None,
    ) -> Stream:
        for name, expression in computed.items():
            check_expression(uid, name, expression)
            if name in columns:
                raise JobRejected("duplicate-column", uid, f"two output columns have the name {name!r}")
        if not columns and not computed:
            raise JobRejected("bad-columns", uid, "it needs at least one column")
        project = Project({**columns, **computed}, keeps_input=keeps_input)
        if computed:
            use = columns_of_expressions(self.columns, [*columns.values(), *computed.values()], forwards=keeps_input)
        else:
            use = ColumnUse(frozenset(columns))
        changelog = _use_of_changelog(computed.values())
        if changelog is ChangelogUse.FORWARDED and (OP_COLUMN in computed or not (keeps_input or OP_COLUMN in columns)):
            changelog = ChangelogUse.REFUSED  # the rows would lose their kind, which no expression has read
        return self._then_expression(uid, project, parallelism, use, changelog, on_error)

    def _then_expression(
        self,
        uid: str,
        operator: Filter | Project,
        parallelism: int | None,
        use: ColumnUse | None,
        changelog: ChangelogUse,
        on_error: ErrorPolicy | None,
    ) -> Stream:
        columns = self.columns
        after = None if columns is None else with_uid_in_errors(uid, lambda: operator.columns_after(columns))
        if on_error is not None:
            make = partial(_bisect, operator)
            return self._then_stateless(uid, make, parallelism, after, on_error, repeatable=True)
        source = StepInput(stream=self, use=use, takes_encoded_texts=isinstance(operator, Filter), changelog=changelog)
        stream = self.flow._add_operator(uid, lambda: operator, [source], parallelism, columns=after)
        self.flow._plan.passing.add(stream.uid)
        return stream

    def _then_stateless(
        self,
        uid: str,
        make: Callable[[SetAsideRows | None], Operator],
        parallelism: int | None,
        columns: pa.Schema | None,
        on_error: ErrorPolicy | None,
        repeatable: bool,
    ) -> Stream:
        """A step with code of the author. If it is repeatable, it passes the numbers of its rows on.

        A step that sets rows aside reads all columns, for the dead letters, and passes no numbers on.

        Args:
            make: creates the operator of a subtask, with its dead letters; None: an error fails it.
        """
        if on_error is None:
            stream = self._then(uid, lambda: make(None), parallelism, columns)
            if repeatable:
                self.flow._plan.passing.add(stream.uid)
            return stream
        policy, limit = check_policy(uid, on_error), on_error.max_per_minute
        if self.changelog is not None:
            detail = "a row that is set aside without the row that it takes back, or is taken back by, falsifies totals"
            raise JobRejected("changelog-input", uid, f"on_error: {detail}. Use it before the changelog begins")
        source, tags = StepInput(stream=self), (DEAD_LETTERS,)
        stream = self.flow._add_operator(
            uid, lambda: make(SetAsideRows(limit)), [source], parallelism, columns=columns, side_outputs=tags
        )
        letters, name = stream.side_output(DEAD_LETTERS), f"dead letters of {uid}"
        letters.sink(f"{uid}.dead_letters", policy.sink(), parallelism=parallelism, name=name)
        return stream

    def _then(
        self,
        uid: str,
        make: Callable[[], Operator],
        parallelism: int | None,
        columns: pa.Schema | None = None,
    ) -> Stream:
        source = StepInput(stream=self, changelog=ChangelogUse.FORWARDED)
        return self.flow._add_operator(uid, make, [source], parallelism, columns=columns)


@dataclass(frozen=True)
class IterativeStream(Stream):
    """The head of a loop."""

    def close_with(self, stream: Stream) -> None:
        """Feeds `stream`, which must descend from this head and have its columns, back into the head.

        May be called again with another stream.
        """
        before = self.flow._plan.back_edge_count(self.uid)
        changelog = ChangelogUse.REFUSED if self.changelog is None else ChangelogUse.FORWARDED
        self.flow._connect(self.uid, StepInput(stream=stream, feedback=True, changelog=changelog), before + 1)


def _bisect(operator: Operator, letters: SetAsideRows | None) -> Operator:
    return operator if letters is None else Bisect(operator, letters)


def _use_of_changelog(expressions: Iterable[pc.Expression]) -> ChangelogUse:
    reads = any(names_column(each, OP_COLUMN) for each in expressions)
    return ChangelogUse.READ if reads else ChangelogUse.FORWARDED
