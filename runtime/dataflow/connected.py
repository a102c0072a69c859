"""Two streams that are read by one function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from runtime.core.job.graph import Partitioning, Role
from runtime.errors import JobRejected
from runtime.operators.arguments import argument_error, check_column, check_factory, check_schema
from runtime.operators.functions.co_process import CoProcessFunction, KeyedCoProcessFunction
from runtime.operators.functions.keyed_process import KeyedInput, KeyedProcess
from runtime.operators.functions.process import Process
from runtime.operators.output_tag import OutputTag, check_tags
from runtime.operators.paired_keys import check_key_pairs

if TYPE_CHECKING:
    from runtime.dataflow.builder import KeyedStream, Stream


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
