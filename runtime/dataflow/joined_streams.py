"""Joins of two keyed streams in event time: by an interval of time, and by window (Flink: `intervalJoin`, `join`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from math import gcd
from typing import TYPE_CHECKING, Final

from runtime.core.restore.declarations import LOWER_BOUND, UPPER_BOUND, window_durations
from runtime.dataflow.checks import check_late_columns, with_uid_in_errors
from runtime.dataflow.connected_streams import check_times, paired_inputs
from runtime.dataflow.inputs import StepInput
from runtime.operators.arguments import argument_error, check_column, check_interval, check_window
from runtime.operators.joins.columns import JoinColumns
from runtime.operators.joins.interval import Interval, IntervalJoin
from runtime.operators.joins.two_streams import JoinSide, TwoStreamJoin
from runtime.operators.joins.window import WINDOW_COLUMNS, WindowJoin
from runtime.operators.output_tag import OutputTag, check_tags

if TYPE_CHECKING:
    from runtime.dataflow.keyed_stream import KeyedStream
    from runtime.dataflow.stream import Stream

_NO_RETRACTION: Final = (
    "The pairs of a row that is taken back would have to be taken back, too, and kept rows have no row kind. Join the "
    "rows before the aggregate, or connect the streams by a function that keeps the rows of each key. "
)

LateOutputs = tuple[OutputTag | None, OutputTag | None]


@dataclass(frozen=True)
class IntervalJoinedStreams:
    """Two keyed streams, to be joined by `between`."""

    first: KeyedStream
    second: KeyedStream

    def between(
        self,
        uid: str,
        lower: timedelta,
        upper: timedelta,
        *,
        time: tuple[str, str],
        lower_exclusive: bool = False,
        upper_exclusive: bool = False,
        suffixes: tuple[str, str] = ("", ""),
        result_time: str | None = None,
        late_to: LateOutputs = (None, None),
        parallelism: int | None = None,
    ) -> Stream:
        """Joins rows with equal keys if the second row's time is within [`lower`, `upper`] of the first row's time.

            orders.key_by("order_id").interval_join(payments.key_by("order")).between(
                "paid", timedelta(0), timedelta(minutes=15), time=("ordered_at", "paid_at")
            )

        An inner join: a pair is emitted when its later row arrives. Rows with a null in their key match no row. Rows
        are kept until the watermark shows that no match can follow.

        Output columns: those of the first stream, those of the second stream, then `result_time`. A key column of the
        second stream is left out if its counterpart has the same name.

        Args:
            lower, upper: whole milliseconds; may be negative. Times are rounded down to milliseconds.
            time: columns of event times of the first and second stream.
            lower_exclusive, upper_exclusive: exclude the bound itself.
            suffixes: appended to the names that both streams have. Without suffixes such names are refused.
            result_time: name of a further column with the event time of the pair, the later of both (timestamp[ms]).
                Use it as the time of steps that follow: no pair is late in it.
            late_to: side outputs for late rows of the first and second stream, with the columns of the stream. A row is
                late if its time is below the watermark of the step. None: late rows are counted and dropped.
        """
        inputs = paired_inputs(uid, self.first, self.second)
        lower_ms = check_interval(uid, "lower", lower) + bool(lower_exclusive)
        upper_ms = check_interval(uid, "upper", upper) - bool(upper_exclusive)
        interval = with_uid_in_errors(uid, lambda: Interval(lower_ms, upper_ms))
        if result_time is not None:
            check_column(uid, "result_time", result_time)
        sides = _sides(uid, self.first, self.second, time, late_to)
        pairs = tuple(zip(self.first.keys, self.second.keys, strict=True))
        columns = JoinColumns(pairs, _checked_suffixes(uid, suffixes), () if result_time is None else (result_time,))
        create = partial(IntervalJoin, sides, interval, columns)
        bounds = {LOWER_BOUND: lower_ms, UPPER_BOUND: upper_ms}
        return _add_join(uid, inputs, create, parallelism, bounds, time)


@dataclass(frozen=True)
class JoinedStreams:
    """Two keyed streams, to be joined by `window`."""

    first: KeyedStream
    second: KeyedStream

    def window(
        self,
        uid: str,
        size: timedelta,
        *,
        time: tuple[str, str],
        slide: timedelta | None = None,
        suffixes: tuple[str, str] = ("", ""),
        late_to: LateOutputs = (None, None),
        parallelism: int | None = None,
    ) -> Stream:
        """Joins rows with equal keys in the same event-time window. Windows are aligned to the epoch.

            views.key_by("user").join(clicks.key_by("user")).window(
                "seen_and_clicked", timedelta(minutes=5), time=("viewed_at", "clicked_at")
            )

        An inner join: all pairs of a window are emitted when the watermark has reached its end. Rows with a null in
        their key match no row. A row is freed with its last window.

        Output columns: those of the first stream, those of the second stream, then `window_start` and `window_end`
        (timestamp[ms]). A key column of the second stream is left out if its counterpart has the same name.

        Args:
            time: columns of event times of the first and second stream.
            slide: distance between the starts of two consecutive windows, which may overlap; None: `size`.
            suffixes: appended to the names that both streams have. Without suffixes such names are refused.
            late_to: side outputs for late rows of the first and second stream, with the columns of the stream. A row is
                late if its last window has fired. None: late rows are counted and dropped.
        """
        size_ms, slide_ms = check_window(uid, size, slide)
        drift_ms = gcd(size_ms, slide_ms)
        inputs = [replace(each, drift_ms=drift_ms) for each in paired_inputs(uid, self.first, self.second)]
        sides = _sides(uid, self.first, self.second, time, late_to)
        pairs = tuple(zip(self.first.keys, self.second.keys, strict=True))
        columns = JoinColumns(pairs, _checked_suffixes(uid, suffixes), WINDOW_COLUMNS)
        create = partial(WindowJoin, sides, size_ms, slide_ms, columns)
        return _add_join(uid, inputs, create, parallelism, window_durations(size_ms, slide_ms), time)


def _sides(
    uid: str, first: KeyedStream, second: KeyedStream, time: tuple[str, str], late_to: LateOutputs
) -> tuple[JoinSide, JoinSide]:
    """The sides of a join. Raises JobRejected: a column of times or a side output does not fit its stream."""
    if not isinstance(late_to, tuple) or len(late_to) != 2:
        raise argument_error(uid, "late_to", f"must be a side output or None for each stream, not {late_to!r}")
    check_tags(uid, [tag for tag in late_to if tag is not None])
    for keyed, tag in zip((first, second), late_to, strict=True):
        if tag is not None:
            check_late_columns(uid, tag, keyed.stream.columns)
    first_time, second_time = check_times(uid, time, first, second)
    return (
        JoinSide(first.keys, first_time, late_to[0], first.stream.columns),
        JoinSide(second.keys, second_time, late_to[1], second.stream.columns),
    )


def _add_join(
    uid: str,
    inputs: Sequence[StepInput],
    create: Callable[[], TwoStreamJoin],
    parallelism: int | None,
    durations: Mapping[str, int],
    times: tuple[str, str],
) -> Stream:
    """Adds the operator of a join. Raises JobRejected: two columns of the joined rows have the same name."""
    inputs = [replace(each, no_retraction=_NO_RETRACTION) for each in inputs]
    join = with_uid_in_errors(uid, create)
    first, second = (each.stream.columns for each in inputs)
    columns = (
        None if first is None or second is None else with_uid_in_errors(uid, lambda: join.joined_columns(first, second))
    )
    return inputs[0].stream.flow._add_operator(
        uid,
        create,
        inputs,
        parallelism,
        columns=columns,
        side_outputs=join.late_outputs,
        without_event_time="its rows would be kept for ever",
        durations=durations,
        times=times,
    )


def _checked_suffixes(uid: str, suffixes: object) -> tuple[str, str]:
    """The suffixes. Raises JobRejected unless they are a tuple of two texts."""
    if isinstance(suffixes, tuple) and len(suffixes) == 2 and all(isinstance(each, str) for each in suffixes):
        return suffixes
    raise argument_error(uid, "suffixes", f"must be a tuple of two texts, not {suffixes!r}")
