"""The operators of a Spark task, run without channels and barriers; their state is in memory.

A fused operator lives as long as its task. A keyed operator lives for a chunk of whole keys.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from runtime.core.job.ids import Token
from runtime.core.job.key_groups import key_group_range
from runtime.core.job.messages import MAX_WATERMARK
from runtime.dataflow.plan import CompiledJob
from runtime.operators.functions.async_map import AsyncMap
from runtime.operators.functions.batch import FlatMapRows
from runtime.operators.functions.set_aside import Bisect
from runtime.ports import Collector, Operator, OperatorContext
from runtime.state.backend import SubtaskState
from spark_jobs.batch.counts import RowCounter
from spark_jobs.batch.failures import StepRefused, TaskFailure, call_hook
from spark_jobs.batch.refusals import PROCESSING_TIME
from spark_jobs.batch.wire import Inputs

_MS_PER_S: Final = 1_000


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """Facts about the run that operators may use."""

    name: str
    max_parallelism: int
    token: Token = Token(0)

    @classmethod
    def of(cls, job: CompiledJob) -> JobFacts:
        """The facts for operators that run outside an attempt of the job: the token is 0."""
        return cls(name=job.name, max_parallelism=job.graph.max_parallelism)


def empty_state(job: JobFacts, index: int, parallelism: int) -> SubtaskState:
    return SubtaskState(key_group_range(index, job.max_parallelism, parallelism), job.max_parallelism, None)


def context_of(
    job: JobFacts,
    uid: str,
    index: int,
    parallelism: int,
    now_ms: Callable[[], int],
    state: SubtaskState | None = None,
) -> OperatorContext:
    """An operator context. `state` None: empty state."""
    return OperatorContext(
        job=job.name,
        uid=uid,
        index=index % parallelism,
        parallelism=parallelism,
        max_parallelism=job.max_parallelism,
        token=job.token,
        state=state or empty_state(job, index % parallelism, parallelism),
        now_ms=now_ms,
    )


def wall_clock_ms() -> int:
    return time.time_ns() // (_MS_PER_S * _MS_PER_S)


class Subtask:
    """A subtask of an operator, with empty state. Errors of the operator's code name its uid.

    Args:
        operator: owned by this subtask.
        schema: expected output schema; None: not checked.
        builds: broadcast rows by input; processed completely before the first row.
        out: receives the output.
        tally: counts rows of the main inputs and emitted rows.
        inputs: number of main inputs, which are not broadcast.
        outputs: columns of the side outputs.
    """

    def __init__(
        self,
        job: JobFacts,
        uid: str,
        index: int,
        parallelism: int,
        operator: Operator,
        schema: pa.Schema | None,
        builds: Sequence[tuple[int, Sequence[pa.RecordBatch]]],
        out: Collector,
        tally: RowCounter | None = None,
        inputs: int = 1,
        outputs: Mapping[str, pa.Schema] = MappingProxyType({}),
    ) -> None:
        self._uid, self._index, self._operator = uid, index, operator
        self._tally, self._inputs = tally or RowCounter(), inputs
        schemas = {"": schema, **outputs}
        self._out = out if schema is None else _CheckedCollector(uid, schemas, out, self._tally)
        self._completed = threading.Event()  #: set when a request has completed
        context = context_of(job, uid, index, parallelism, self._refuse_clock)
        if isinstance(operator, AsyncMap):
            operator.keep_order()
            context.now_ms, context.wake = wall_clock_ms, self._completed.set
        if isinstance(operator, FlatMapRows | Bisect):  # their functions see no clock, and dead letters have a time
            context.now_ms = wall_clock_ms
        self._call_hook("open", operator.open, context)
        self._call_hook("start", operator.start, self._out)
        for number, batches in builds:
            for batch in batches:
                self._call_hook("process", operator.process, number, batch, self._out)
            self._call_hook("end_input", operator.end_input, number, self._out)

    def process(self, batch: pa.RecordBatch, input: int = 0) -> None:
        self._tally.rows_in[self._uid] += batch.num_rows
        self._call_hook("process", self._operator.process, input, batch, self._out)
        if isinstance(self._operator, AsyncMap):
            self._await_responses(self._operator)

    def process_sorted_rows(self, batches: Sequence[pa.RecordBatch], inputs: Inputs | None = None) -> None:
        """Processes rows sorted by key and event time.

        Args:
            batches: by main input, its rows.
            inputs: the input of each row of both; None: there is a single main input.
        """
        self._tally.rows_in[self._uid] += sum(batch.num_rows for batch in batches)
        if inputs is None:
            self._call_hook("process", self._operator.process_sorted, batches[0], self._out)
        else:
            self._call_hook("process", self._operator.process_sorted_inputs, batches, inputs, self._out)

    def finish(self) -> None:
        """Ends the input: advances the watermark to its maximum, then finishes the operator."""
        if self._call_hook("next_processing_timer", self._operator.next_processing_timer) is not None:
            raise self._processing_time("it has registered a processing-time timer")
        self._call_hook("on_watermark", self._operator.on_watermark, MAX_WATERMARK, self._out)
        for number in range(self._inputs):
            self._call_hook("end_input", self._operator.end_input, number, self._out)
        self._call_hook("finish", self._operator.finish, self._out)

    def close(self) -> None:
        self._call_hook("close", self._operator.close)

    def _await_responses(self, operator: AsyncMap) -> None:
        """Waits for all open requests, so that the results of a batch leave with the watermark of its rows."""
        while not operator.ready(finishing=True):
            due_ms = operator.next_processing_timer()
            if due_ms is not None:
                self._completed.wait(max(0, due_ms - wall_clock_ms()) / _MS_PER_S)
            self._completed.clear()
            self._call_hook("on_processing_time", operator.on_processing_time, wall_clock_ms(), self._out)

    def _refuse_clock(self) -> int:
        raise self._processing_time("it reads the clock")

    def _processing_time(self, reason: str) -> StepRefused:
        return StepRefused(PROCESSING_TIME, self._uid, f"{reason}: its answer would differ from run to run in BATCH")

    def _call_hook(self, hook: str, function: Callable[..., Any], *args: Any) -> Any:
        return call_hook(self._uid, self._index, hook, function, *args)


class _CheckedCollector:
    """A collector that checks the columns of each batch against the plan. `schemas`: by output, "" is the main one."""

    def __init__(self, uid: str, schemas: Mapping[str, pa.Schema], out: Collector, tally: RowCounter) -> None:
        self._uid, self._schemas, self._out, self._tally = uid, schemas, out, tally
        self._seen: dict[str, pa.Schema] = {}

    def emit(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._check("", batch)
            self._out.emit(batch)

    def emit_to(self, output: str, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._check(output, batch)
            self._out.emit_to(output, batch)

    def _check(self, output: str, batch: pa.RecordBatch) -> None:
        if batch.schema is not self._seen.get(output):
            if output in self._schemas:  # rows of others have no readers
                check_columns(self._uid, self._schemas[output], batch.schema)
            self._seen[output] = batch.schema
        self._tally.rows_out[self._uid] += batch.num_rows


def check_columns(uid: str, expected: pa.Schema, schema: pa.Schema) -> None:
    """Raises TaskFailure: columns differ in name, order or type from the planned columns of step `uid`."""
    if expected.names != schema.names:
        detail = f"its rows have the columns {schema.names}, planned were {expected.names}"
        raise TaskFailure(uid, f"operator {uid!r}: {detail}")
    for before, now in zip(expected, schema, strict=True):
        if before.type != now.type:
            raise TaskFailure(uid, f"operator {uid!r}: column {now.name!r} was {before.type} and is {now.type}")


class OperatorChain:
    """A collector that runs operators in sequence; the last operator emits to `out`.

    Args:
        make: factories in order of the operators; each makes a subtask that emits to the given collector.
    """

    def __init__(self, make: Iterable[Callable[[Collector], Subtask]], out: Collector) -> None:
        self._subtasks: list[Subtask] = []
        self._out = head = out
        for factory in reversed(list(make)):
            subtask = factory(head)
            self._subtasks.insert(0, subtask)
            head = _ChainInput(subtask)

    def emit(self, batch: pa.RecordBatch) -> None:
        self.process(0, batch)

    def emit_to(self, output: str, batch: pa.RecordBatch) -> None:
        """Emits rows of a side output. Steps read them behind `out` only."""
        if not self._subtasks:
            self._out.emit_to(output, batch)

    def process(self, input: int, batch: pa.RecordBatch) -> None:
        """Processes rows of an input of the first operator."""
        if not batch.num_rows:
            return
        if self._subtasks:
            self._subtasks[0].process(batch, input)
        else:
            self._out.emit(batch)

    def finish(self) -> None:
        """Finishes the operators in order: an operator may still emit rows to the next one."""
        for subtask in self._subtasks:
            subtask.finish()

    def close(self) -> None:
        for subtask in self._subtasks:
            subtask.close()


class _ChainInput:
    def __init__(self, subtask: Subtask) -> None:
        self._subtask = subtask

    def emit(self, batch: pa.RecordBatch) -> None:
        self._subtask.process(batch)

    def emit_to(self, output: str, batch: pa.RecordBatch) -> None:
        """Drops the batch: a step with side outputs that are read is the last of its stage."""
