"""Streams partitioned by key group, and the steps with state per key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from math import gcd
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from runtime.core.job.graph import Partitioning
from runtime.core.restore.declarations import SESSION_GAP, WITHIN, window_durations
from runtime.dataflow.checks import check_late_columns, check_time, validate_factory, with_uid_in_errors
from runtime.dataflow.connected_streams import ConnectedKeyedStreams
from runtime.dataflow.functions import add_function, add_transform
from runtime.dataflow.inputs import Changelog, ChangelogUse, StepInput, rules_input
from runtime.dataflow.joined_streams import IntervalJoinedStreams, JoinedStreams
from runtime.dataflow.plan import PreAggregation
from runtime.dataflow.used_columns import ColumnUse, columns_of_aggregates
from runtime.errors import JobRejected
from runtime.operators.aggregates import Aggregate
from runtime.operators.arguments import (
    check_aggregates,
    check_function,
    check_gap,
    check_window,
    check_within,
)
from runtime.operators.functions.keyed_process import (
    KeyedBroadcastProcessFunction,
    KeyedProcess,
    KeyedProcessFunction,
)
from runtime.operators.functions.micro_batches import Batches, BatchLimits
from runtime.operators.latest import Latest
from runtime.operators.output_tag import OutputTag
from runtime.operators.retraction import OP_COLUMN, RetractableSet
from runtime.operators.running_aggregate import RunningAggregate
from runtime.operators.windows.deduplicate import Deduplicate
from runtime.operators.windows.pre_aggregation import WindowPreAggregator
from runtime.operators.windows.retracting_session import RetractingSessionWindow
from runtime.operators.windows.session import SessionWindow
from runtime.operators.windows.sliding import SlidingWindow
from runtime.operators.windows.tumbling import TumblingWindow
from runtime.operators.windows.window import RowInput
from runtime.ports import Operator

if TYPE_CHECKING:
    from runtime.dataflow.stream import BatchFunction, Stream


_NO_RETRACTION_OF_FIRST_ROWS: Final = (
    "If the first row of a key is taken back, a later one would have to pass, of which nothing is kept. Drop "
    "duplicates before the aggregate, or count the rows of each key by an aggregate with changelog=True. "
)
_NO_RETRACTION_OF_LATEST_ROWS: Final = (
    "If the latest row of a key is taken back, the row before it would have to come back, of which only the time is "
    "kept. Use an aggregate with changelog=True and Max of the time. "
)


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

        Output columns: the keys, `window_start`, `window_end` (timestamp[ms]), then a column per aggregate. Windows of
        a changelog of `aggregate` subtract the rows that are taken back before a window fires. Their output is no
        changelog: a window fires once, with the rows that are left, if any.

        Args:
            time: name of the column of event times (timestamp, date, or integer milliseconds).
            slide: distance between the starts of two consecutive windows, which may overlap; None: `size`.
            late_to: side output for late rows: rows whose last window has fired (Flink: `sideOutputLateData`). They
                keep the columns of the input. Rows are then not aggregated before the shuffle, nor are those of a
                changelog. None: late rows are counted and dropped.
        """
        check_time(uid, time, self.stream.columns)
        check_aggregates(uid, aggregates)
        keys, by_name, (size_ms, slide_ms) = self.keys, dict(aggregates), check_window(uid, size, slide)
        pane_ms, retracts = gcd(size_ms, slide_ms), self.stream.changelog is Changelog.RETRACT
        combiner = partial(WindowPreAggregator, keys, time, pane_ms, by_name)
        in_window = retracts or late_to is not None
        pre_aggregation = PreAggregation(
            pane_ms, combiner, time=time, size_ms=size_ms, slide_ms=slide_ms, in_window=in_window
        )
        use = columns_of_aggregates(time, *([OP_COLUMN] if retracts else []), aggregates=by_name)
        rows = RowInput(time, pane_ms, late_to, None if retracts else combiner) if in_window else None
        if late_to is not None:
            check_late_columns(uid, late_to, self.stream.columns)
        make: Callable[[], Operator]
        if slide_ms == size_ms:
            make, state = partial(TumblingWindow, keys, size_ms, by_name, rows), "windows"
        else:
            make, state = partial(SlidingWindow, keys, size_ms, slide_ms, by_name, rows), "panes"
        factory = validate_factory(uid, make)
        in_state = RetractableSet(by_name).by_name if retracts else by_name
        source = self._input(pre_aggregation, (state, in_state), use if late_to is None else None, pane_ms)
        stream = self.stream.flow._add_operator(
            uid,
            factory,
            [replace(source, changelog=ChangelogUse.SUBTRACTED)],
            parallelism,
            side_outputs=() if late_to is None else (late_to,),
            without_event_time="its windows would never fire",
            durations=window_durations(size_ms, slide_ms),
            times=(time,),
        )
        return replace(stream, forwarded_changelog=self.stream.changelog)  # late rows keep their row kind

    def session_window(
        self,
        uid: str,
        gap: timedelta,
        time: str,
        aggregates: Mapping[str, Aggregate],
        *,
        late_to: OutputTag | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Event-time sessions: rows of a key that follow each other within `gap` (Flink: `EventTimeSessionWindows`).

        Output columns: the keys, `window_start` (time of the first row), `window_end` (time of the last row, plus the
        gap; both timestamp[ms]), then a column per aggregate. A session is emitted once, when the watermark has reached
        its end. Sessions of a changelog of `aggregate` are those of the rows that are left.

        Args:
            gap: the longest pause within a session.
            time: name of the column of event times (timestamp, date, or integer milliseconds).
            late_to: side output for late rows: rows whose session has ended. They keep the columns of the input. None:
                late rows are counted and dropped.
        """
        check_time(uid, time, self.stream.columns)
        check_aggregates(uid, aggregates)
        if late_to is not None:
            check_late_columns(uid, late_to, self.stream.columns)
        by_name, retracts = dict(aggregates), self.stream.changelog is Changelog.RETRACT
        use = columns_of_aggregates(time, *([OP_COLUMN] if retracts else []), aggregates=by_name)
        gap_ms = check_gap(uid, gap)
        kind = RetractingSessionWindow if retracts else SessionWindow
        factory = validate_factory(uid, partial(kind, self.keys, gap_ms, time, by_name, late_to))
        in_state = RetractableSet(by_name).by_name if retracts else by_name
        source = self._input(None, ("sessions", in_state), use if late_to is None else None, gap_ms)
        stream = self.stream.flow._add_operator(
            uid,
            factory,
            [replace(source, changelog=ChangelogUse.SUBTRACTED)],
            parallelism,
            side_outputs=() if late_to is None else (late_to,),
            without_event_time="its sessions would never end",
            durations={SESSION_GAP: gap_ms},
            times=(time,),
        )
        return replace(stream, forwarded_changelog=self.stream.changelog)  # late rows keep their row kind

    def deduplicate(
        self,
        uid: str,
        within: timedelta,
        time: str,
        *,
        late_to: OutputTag | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Drops duplicates: only the first row of a key passes in each hour, or other length `within` of event time.

        Rows pass unchanged, at once and in order. Dropped rows are counted in `duplicate_records`.

        Args:
            within: event time is divided into parts of this length, aligned to the epoch. A duplicate in the next part
                passes. State is freed when the watermark has passed a part.
            time: name of the column of event times (timestamp, date, or integer milliseconds).
            late_to: side output for late rows: rows of a part that the watermark has passed. They keep the columns of
                the input. None: late rows are counted and dropped.
        """
        check_time(uid, time, self.stream.columns)
        within_ms = check_within(uid, within)
        if late_to is not None:
            check_late_columns(uid, late_to, self.stream.columns)
        keys = self.keys
        source = self._input(use=ColumnUse(frozenset({time}), forwards=True) if late_to is None else None)
        return self.stream.flow._add_operator(
            uid,
            lambda: Deduplicate(keys, within_ms, time, late_to),
            [replace(source, no_retraction=_NO_RETRACTION_OF_FIRST_ROWS)],
            parallelism,
            columns=self.stream.columns,
            side_outputs=() if late_to is None else (late_to,),
            without_event_time="its state would never be freed",
            durations={WITHIN: within_ms},
            times=(time,),
        )

    def latest(self, uid: str, time: str, *, parallelism: int | None = None) -> Stream:
        """The latest row of each key, as updates: a row replaces the former row of its key at the target.

        A row passes, unchanged, unless its key has had a row with a later time. Of the rows of a key in a batch only
        the latest passes. Of rows with equal times the last one counts. State is a time per key and is never freed.

        Args:
            time: name of the column of times (timestamp, date, or integer).
        """
        check_time(uid, time, self.stream.columns)
        keys, use = self.keys, ColumnUse(frozenset({time}), forwards=True)
        return self.stream.flow._add_operator(
            uid,
            lambda: Latest(keys, time),
            [replace(self._input(use=use), no_retraction=_NO_RETRACTION_OF_LATEST_ROWS)],
            parallelism,
            columns=self.stream.columns,
            times=(time,),
        )

    def aggregate(
        self,
        uid: str,
        aggregates: Mapping[str, Aggregate],
        *,
        changelog: bool = False,
        parallelism: int | None = None,
    ) -> Stream:
        """Running aggregates; each batch emits the new values of its keys, in the order of their first rows.

        Args:
            changelog: emit inserts, updates and deletions, with the row kind in column `op`; see `RunningAggregate`. An
                aggregate with `changelog=True` reads such a stream, and subtracts rows that are taken back. Other steps
                that would treat them as new rows refuse it: read `op` before them.
        """
        check_aggregates(uid, aggregates)
        keys, by_name, retracts = self.keys, dict(aggregates), self.stream.changelog is Changelog.RETRACT
        if retracts and not changelog:
            detail = (
                f"its input {self.stream.uid!r} is a changelog: a key may lose all its rows, and without a column 'op' "
                "the output cannot show that: add changelog=True"
            )
            raise JobRejected("changelog-input", uid, detail)
        running = validate_factory(uid, lambda: RunningAggregate(keys, by_name, changelog, retracts))
        source = self._input(None, ("aggregates", by_name), columns_of_aggregates(aggregates=by_name))
        if retracts:
            in_state = RetractableSet(by_name).by_name
            source = self._input(None, ("aggregates", in_state), columns_of_aggregates(OP_COLUMN, aggregates=by_name))
        source = replace(source, changelog=ChangelogUse.SUBTRACTED)
        stream = self.stream.flow._add_operator(uid, running, [source], parallelism)
        return replace(stream, changelog=Changelog.RETRACT if changelog else None)

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
        limits = with_uid_in_errors(uid, lambda: BatchLimits(max_rows, max_wait_ms, flush_on_barrier))
        keys = self.keys
        return self.stream.flow._add_operator(
            uid, lambda: Batches(keys, function, limits), [self._function_input()], parallelism
        )

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
        return self._process(uid, KeyedProcessFunction, function_factory, schema, time, side_outputs, [], parallelism)

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
        return add_transform(uid, operator_factory, schema, side_outputs, self._function_input(), parallelism)

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
        kind, inputs = KeyedBroadcastProcessFunction, [rules_input(rules)]
        return self._process(uid, kind, function_factory, schema, time, side_outputs, inputs, parallelism)

    def connect(self, other: KeyedStream) -> ConnectedKeyedStreams:
        """As `Stream.connect`; `other` needs keys of the same number and types, whose names may differ."""
        return ConnectedKeyedStreams(self, other)

    def interval_join(self, other: KeyedStream) -> IntervalJoinedStreams:
        """Pairs of rows with equal keys and times within an interval of each other; continue with `between`."""
        return IntervalJoinedStreams(self, other)

    def join(self, other: KeyedStream) -> JoinedStreams:
        """Pairs of rows with equal keys in the same window; continue with `window`."""
        return JoinedStreams(self, other)

    def _process(
        self,
        uid: str,
        kind: type,
        function_factory: Callable[[], KeyedProcessFunction],
        schema: pa.Schema,
        time: str | None,
        side_outputs: Sequence[OutputTag],
        inputs: Sequence[StepInput],
        parallelism: int | None,
    ) -> Stream:
        """Adds a keyed function; `inputs`: further inputs."""
        if time is not None:
            check_time(uid, time, self.stream.columns)
        keys = self.keys
        return add_function(
            uid,
            kind,
            function_factory,
            lambda function, tags: KeyedProcess(function, keys, schema, time, tags),
            schema,
            side_outputs,
            [self._function_input(), *inputs],
            parallelism,
        )

    def _function_input(self) -> StepInput:
        """This stream as the input of an author's function, which gets the column `op` of a changelog."""
        return replace(self._input(), changelog=ChangelogUse.FORWARDED)

    def _input(
        self,
        pre_aggregation: PreAggregation | None = None,
        state: tuple[str, Mapping[str, Aggregate]] | None = None,
        use: ColumnUse | None = None,
        drift_ms: int | None = None,
    ) -> StepInput:
        """This stream as the input of a step."""
        return StepInput(
            stream=self.stream,
            partitioning=Partitioning.HASH,
            keys=self.keys,
            pre_aggregation=pre_aggregation,
            state=state,
            drift_ms=drift_ms,
            use=use,
        )
