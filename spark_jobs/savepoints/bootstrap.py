"""State bootstrapped from rows: the operator itself processes the rows, in memory.

Its output is dropped and no watermark advances. Timers are registered but do not fire; windows open but do not close.
This module uses no Spark; a call makes the state of a single subtask. (Flink's State Processor API:
`StateBootstrapTransformation`.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa

from runtime.core.job.graph import EdgeSpec, Partitioning, Role
from runtime.core.job.ids import OperatorId, Token
from runtime.core.job.key_groups import key_group_range
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.dataflow.plan import CompiledJob, PreAggregation
from runtime.errors import JobRejected, OperatorFailure, WeirError
from runtime.operators.functions.keyed_process import KeyedProcess, KeyedProcessFunction
from runtime.operators.running_aggregate import RunningAggregate
from runtime.operators.windows.sliding import SlidingWindow
from runtime.operators.windows.tumbling import TumblingWindow
from runtime.ports import Operator, OperatorContext, SnapshotStore
from runtime.state.backend import SubtaskState
from runtime.state.index.key_types import KeyTypes

_FIRST_CHECKPOINT: Final = 1
_SUPPORTED_OPERATORS: Final = (RunningAggregate, KeyedProcess, TumblingWindow, SlidingWindow)
_EMPTY_SCHEMA: Final = pa.schema([])

Function = Callable[[], KeyedProcessFunction]


@dataclass(frozen=True, kw_only=True)
class Bootstrap:
    """An operator behind `key_by`, and the way its state is made. Can be pickled with cloudpickle.

    Args:
        function: makes the function that fills the state of a process function, in place of the job's function.
        parallelism: number of subtasks into which the state is split.
    """

    job: CompiledJob
    uid: str
    function: Function | None
    parallelism: int

    @property
    def edge(self) -> EdgeSpec:
        return _keyed_edge(self.job, self.uid)[1]

    @property
    def keys(self) -> tuple[str, ...]:
        return self.edge.keys

    @property
    def pre_aggregation(self) -> PreAggregation | None:
        return self.job.pre_aggregations.get(_keyed_edge(self.job, self.uid)[0])

    @property
    def max_parallelism(self) -> int:
        return self.job.graph.max_parallelism

    @property
    def time(self) -> str | None:
        """The column of event times, if the operator has one."""
        if self.pre_aggregation is not None:
            return self.pre_aggregation.time
        operator = self._filling_operator()
        return operator.time if isinstance(operator, KeyedProcess) else None

    def check(self) -> None:
        """Refuse operators that cannot be bootstrapped.

        Raises:
            JobRejected: the operator is unknown, its state does not come from rows, or `function` has other states.
        """
        operator = self._job_operator()
        if not isinstance(operator, _SUPPORTED_OPERATORS):
            detail = "only process functions behind key_by, aggregates and windows are bootstrapped from rows"
            raise JobRejected("cannot-bootstrap", self.uid, detail)
        if self.function is None:
            return
        if not isinstance(operator, KeyedProcess):
            raise JobRejected("cannot-bootstrap", self.uid, "a function fills only process-function state")
        declared, given = (self._declared_state(one).kinds for one in (operator, self._filling_operator()))
        unknown = sorted(set(given) - set(declared))
        if unknown:
            known = ", ".join(sorted(name for name in declared if not name.startswith("_")))
            detail = f"the function fills state {unknown[0]!r}; the operator has only {known}"
            raise JobRejected("unknown-state", self.uid, detail)

    def snapshot(
        self,
        index: int,
        batches: Iterable[pa.RecordBatch],
        store: SnapshotStore,
        prefix: str,
        now_ms: Callable[[], int],
    ) -> SubtaskSnapshot:
        """Process the rows and store the state of subtask `index` under `prefix`.

        Args:
            batches: rows in the key groups of the subtask.
            now_ms: processing time in ms, for state with a time to live.

        Raises:
            WeirError: the operator cannot process a row.
        """
        operator, state = self._filling_operator(), self._state(index)
        types = KeyTypes(self.uid)
        context = self._context(index, state, now_ms)
        try:
            self._call_hook(index, "open", operator.open, context)
            self._call_hook(index, "start", operator.start, _NULL_COLLECTOR)
            for batch in batches:
                types.check(batch.schema, self.edge.keys)
                for part in self._pre_aggregate(batch):
                    self._call_hook(index, "process", operator.process, 0, part, _NULL_COLLECTOR)
            self._call_hook(index, "snapshot", operator.snapshot, _FIRST_CHECKPOINT)
            found, _ = state.capture(full=True).write(store, prefix)
        finally:
            operator.close()
        kept = {name: segments for name, segments in found.keyed.items() if segments}
        return msgspec.structs.replace(found, keyed=kept, broadcast={}, key_types=types.by_column())

    # ------------------------------------------------------------ inside

    def _job_operator(self) -> Operator:
        """The operator as the job declares it."""
        known = [operator.uid for operator in self.job.graph.operators]
        if self.uid not in known:
            detail = f"the job has no operator {self.uid!r}, only {', '.join(known)}"
            raise JobRejected("unknown-operator", self.uid, detail)
        if self.job.graph.by_uid[OperatorId(self.uid)].role is not Role.OPERATOR:
            detail = "only operators are bootstrapped from rows, not sources and sinks"
            raise JobRejected("cannot-bootstrap", self.uid, detail)
        return self.job.operators[OperatorId(self.uid)]()

    def _filling_operator(self) -> Operator:
        """The operator that processes the rows: with `function` in place of the job's function, if given."""
        operator = self._job_operator()
        if self.function is None or not isinstance(operator, KeyedProcess):
            return operator
        return KeyedProcess(self.function(), self.edge.keys, _EMPTY_SCHEMA, operator.time)

    def _declared_state(self, operator: Operator) -> SubtaskState:
        state = self._state(0)
        self._call_hook(0, "open", operator.open, self._context(0, state, lambda: 0))
        operator.close()
        return state

    def _state(self, index: int) -> SubtaskState:
        groups = key_group_range(index, self.max_parallelism, self.parallelism)
        return SubtaskState(groups, self.max_parallelism, None)

    def _context(self, index: int, state: SubtaskState, now_ms: Callable[[], int]) -> OperatorContext:
        return OperatorContext(
            job=self.job.name,
            uid=self.uid,
            index=index,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            token=Token(0),
            state=state,
            now_ms=now_ms,
        )

    def _pre_aggregate(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The input of the operator for a batch: pre-aggregated rows for a window, otherwise the batch."""
        folding = self.pre_aggregation
        if folding is None:
            yield batch
            return
        combiner = folding.create()
        yield from combiner.add(batch)
        yield from combiner.flush()

    def _call_hook(self, index: int, hook: str, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except WeirError:
            raise
        except Exception as error:
            raise OperatorFailure(self.uid, index, hook, error) from error


class _NullCollector:
    """A collector without a receiver."""

    def emit(self, batch: pa.RecordBatch) -> None:
        """Drop the batch: it belongs to the output before the savepoint."""


_NULL_COLLECTOR: Final = _NullCollector()


def _keyed_edge(job: CompiledJob, uid: str) -> tuple[int, EdgeSpec]:
    """The keyed edge into the operator, and its number."""
    return next(
        (number, edge)
        for number, edge in enumerate(job.graph.edges)
        if edge.target == uid and edge.partitioning is Partitioning.HASH
    )
