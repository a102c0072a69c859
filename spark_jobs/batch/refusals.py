"""Checks, before anything starts, that a job can run in BATCH; a refusal names the operator and the reason.

Flink refuses or ignores such jobs, too (FLIP-134): their input has no end, or their output depends on the clock.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Final

from runtime.connectors.sources.sequence import SequenceSource
from runtime.core.job.graph import Partitioning, Role
from runtime.dataflow.plan import CompiledJob
from runtime.errors import JobRejected
from runtime.operators.functions.function import FunctionHooks, FunctionOperator
from runtime.operators.functions.micro_batches import Batches
from runtime.ports import HasParts, Operator, WritesAtOnce

PROCESSING_TIME: Final = "processing-time-in-batch"
_CLOCK_METHODS: Final = ("register_processing_timer", "now_ms")
_CLOCK_ARGUMENTS: Final = ("ttl_ms",)


def check_batch(job: CompiledJob) -> None:
    """Checks that `job` can run in BATCH. Raises JobRejected: it cannot; the operator is named."""
    for operator in job.graph.operators:
        if operator.role is Role.SOURCE and not operator.bounded:
            raise JobRejected("unbounded-in-batch", operator.uid, "BATCH reads bounded sources: this one has no end")
    for edge in job.graph.edges:
        if edge.feedback:
            detail = "BATCH has no iteration: run this job in STREAMING, which accepts bounded inputs too"
            raise JobRejected("iteration-in-batch", edge.target, detail)
        if edge.partitioning is Partitioning.CUSTOM and edge.target in job.sinks and _is_read(job, edge.target):
            detail = "BATCH does not keep custom partitioning through write_through: use partition_custom behind it"
            raise JobRejected("custom-write-through-in-batch", edge.target, detail)
    for uid, source in job.sources.items():
        parts = source.parts.values() if isinstance(source, HasParts) else (source,)
        if any(isinstance(part, SequenceSource) and part.duration_ms is not None for part in parts):
            raise JobRejected(PROCESSING_TIME, uid, "it ends by the clock (duration_ms): give it a number of rows")
    for uid, sink in job.sinks.items():
        if isinstance(sink, WritesAtOnce) and sink.is_immediate:
            detail = "it shows rows before the end of the run, also those of a run that fails"
            advice = "choose another `commit` of the sink, or run this job in STREAMING"
            raise JobRejected("immediate-sink-in-batch", uid, f"{detail}: {advice}")
    for operator in job.graph.operators:
        if operator.role is Role.OPERATOR and operator.uid not in job.sinks:
            _check_operator(operator.uid, job.operators[operator.uid]())


def _is_read(job: CompiledJob, uid: str) -> bool:
    """Whether a step reads the output of operator `uid`."""
    return any(edge.source == uid for edge in job.graph.edges)


def _check_operator(uid: str, operator: Operator) -> None:
    if isinstance(operator, Batches) and operator.max_wait_ms is not None:
        raise JobRejected(PROCESSING_TIME, uid, "its batches are emitted by age (max_wait_ms): remove the age limit")
    if isinstance(operator, FunctionOperator):
        used = _clock_use(operator.function)
        if used is not None:
            raise JobRejected(PROCESSING_TIME, uid, f"{type(operator.function).__name__} uses {used}")


def _clock_use(function: FunctionHooks[Any]) -> str | None:
    """The first use of processing time in the code of a function's class. Others are detected at run time."""
    for base in type(function).__mro__:
        if base.__module__.startswith("runtime.operators."):
            continue
        for hook in vars(base).values():
            if isinstance(hook, types.FunctionType):
                for code in _nested_codes(hook.__code__):
                    use = _clock_use_in_code(code)
                    if use is not None:
                        return use
    return None


def _clock_use_in_code(code: types.CodeType) -> str | None:
    """The first processing-time method or keyword argument in `code`; keyword names are constants of the code."""
    method = next((name for name in _CLOCK_METHODS if name in code.co_names), None)
    keywords = (name for constant in code.co_consts if isinstance(constant, tuple) for name in constant)
    return method or next((name for name in keywords if name in _CLOCK_ARGUMENTS), None)


def _nested_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function and of the functions defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested_codes(constant)
