"""Two streams in one step, for a function with a hook per stream and state that both hooks share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from runtime.dataflow.checks import check_time
from runtime.dataflow.functions import add_function
from runtime.dataflow.inputs import ChangelogUse, StepInput
from runtime.errors import JobRejected
from runtime.operators.arguments import argument_error
from runtime.operators.functions.co_process import CoProcessFunction, KeyedCoProcessFunction
from runtime.operators.functions.keyed_process import KeyedInput, KeyedProcess
from runtime.operators.functions.process import Process
from runtime.operators.output_tag import OutputTag
from runtime.operators.paired_keys import check_key_pairs

if TYPE_CHECKING:
    from runtime.dataflow.keyed_stream import KeyedStream
    from runtime.dataflow.stream import Stream


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
        return add_function(
            uid,
            CoProcessFunction,
            function_factory,
            lambda function, tags: Process(function, schema, tags),
            schema,
            side_outputs,
            [StepInput(stream=each, changelog=ChangelogUse.FORWARDED) for each in (self.first, self.second)],
            parallelism,
        )


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
        inputs = [
            replace(each, changelog=ChangelogUse.FORWARDED) for each in paired_inputs(uid, self.first, self.second)
        ]
        first_time, second_time = (None, None) if time is None else check_times(uid, time, self.first, self.second)
        keys, second = self.first.keys, KeyedInput(self.second.keys, second_time)
        return add_function(
            uid,
            KeyedCoProcessFunction,
            function_factory,
            lambda function, tags: KeyedProcess(function, keys, schema, first_time, tags, second),
            schema,
            side_outputs,
            inputs,
            parallelism,
        )


def paired_inputs(uid: str, first: KeyedStream, second: KeyedStream) -> list[StepInput]:
    """The inputs of a step with two keyed streams. Raises JobRejected: the keys do not fit each other."""
    if not hasattr(second, "keys"):
        raise JobRejected("bad-input", uid, "both streams need keys: use key_by")
    check_key_pairs(uid, first.keys, second.keys, first.stream.columns, second.stream.columns)
    return [first._input(), second._input()]


def check_times(uid: str, time: object, first: KeyedStream, second: KeyedStream) -> tuple[str, str]:
    """The columns of event times of two streams. Raises JobRejected unless `time` names a column of each."""
    if not isinstance(time, tuple) or len(time) != 2:
        raise argument_error(uid, "time", f"must name a column of each stream, as a tuple of two, not {time!r}")
    for name, keyed in zip(time, (first, second), strict=True):
        check_time(uid, name, keyed.stream.columns)
    return time
