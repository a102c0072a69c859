"""State bootstrapped from rows: the operator itself processes the rows, in memory.

The operator's output is dropped and no watermark advances. Timers are registered but do not fire; windows stay open.
This module uses no Spark; a call makes the state of a single subtask. (Flink's State Processor API:
`StateBootstrapTransformation`.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
import pyarrow as pa

from runtime.core.job.graph import EdgeSpec, Partitioning, Role
from runtime.core.job.ids import OperatorId
from runtime.core.snapshot.manifest import SubtaskSnapshot
from runtime.dataflow.plan import CompiledJob, PreAggregation
from runtime.errors import JobRejected
from runtime.operators.functions.keyed_process import KeyedProcess, KeyedProcessFunction
from runtime.operators.running_aggregate import RunningAggregate
from runtime.operators.windows.sliding import SlidingWindow
from runtime.operators.windows.tumbling import TumblingWindow
from runtime.ports import Operator, SnapshotStore
from runtime.state.index.key_types import KeyTypes
from spark_jobs.batch.failures import call_hook
from spark_jobs.batch.subtask import JobFacts, context_of, empty_state
from spark_jobs.savepoints.declared import role_of, state_of

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
        return self.job.edges[_keyed_edge(self.job, self.uid)[0]].pre_aggregation

    @property
    def max_parallelism(self) -> int:
        return self.job.graph.max_parallelism

    @property
    def time(self) -> str | None:
        """The column of event times, if the operator has one."""
        if self.pre_aggregation is not None:
            return self.pre_aggregation.time
        operator = self._filling_operator()
        return operator.times[0] if isinstance(operator, KeyedProcess) else None

    def check(self) -> None:
        """Checks that the operator can be bootstrapped.

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
        declared, filling_kinds = (
            state_of(self.job, self.uid, owner).kinds for owner in (operator, self._filling_operator())
        )
        unknown = sorted(set(filling_kinds) - set(declared))
        if unknown:
            states = ", ".join(sorted(name for name in declared if not name.startswith("_")))
            detail = f"the function fills state {unknown[0]!r}; the operator has only {states}"
            raise JobRejected("unknown-state", self.uid, detail)

    def snapshot(
        self,
        index: int,
        batches: Iterable[pa.RecordBatch],
        store: SnapshotStore,
        prefix: str,
        now_ms: Callable[[], int],
    ) -> SubtaskSnapshot:
        """Processes the rows and stores the state of subtask `index` in files under `prefix`.

        Args:
            batches: rows in the key groups of the subtask.
            now_ms: processing time in ms, for state with a time to live.

        Raises:
            WeirError: the operator cannot process a row.
        """
        operator, types = self._filling_operator(), KeyTypes(self.uid)
        facts = JobFacts.of(self.job)
        state = empty_state(facts, index, self.parallelism)
        context = context_of(facts, self.uid, index, self.parallelism, now_ms, state)
        hook = partial(call_hook, self.uid, index)
        try:
            hook("open", operator.open, context)
            hook("start", operator.start, _NULL_COLLECTOR)
            for batch in batches:
                types.check(batch.schema, self.edge.keys)
                for part in self._pre_aggregate(batch):
                    hook("process", operator.process, 0, part, _NULL_COLLECTOR)
            hook("snapshot", operator.snapshot, _FIRST_CHECKPOINT)
            snapshot, _ = state.capture(full=True).write(store, prefix)
        finally:
            operator.close()
        tables = {name: segments for name, segments in snapshot.keyed.items() if segments}
        proofs = {name: snapshot.proofs[name] for name in tables}
        return msgspec.structs.replace(snapshot, keyed=tables, broadcast={}, proofs=proofs, key_types=types.by_column())

    # ------------------------------------------------------------ inside

    def _job_operator(self) -> Operator:
        """The operator as the job declares it."""
        if role_of(self.job, self.uid) is not Role.OPERATOR:
            detail = "only operators are bootstrapped from rows, not sources and sinks"
            raise JobRejected("cannot-bootstrap", self.uid, detail)
        return self.job.operators[OperatorId(self.uid)]()

    def _filling_operator(self) -> Operator:
        """The operator that processes the rows: with `function` in place of the job's function, if given."""
        operator = self._job_operator()
        if self.function is None or not isinstance(operator, KeyedProcess):
            return operator
        return KeyedProcess(self.function(), self.edge.keys, _EMPTY_SCHEMA, operator.times[0])

    def _pre_aggregate(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The input of the operator for a batch: pre-aggregated rows for a window, otherwise the batch."""
        folding = self.pre_aggregation
        if folding is None or folding.in_window:
            yield batch
            return
        combiner = folding.create()
        yield from combiner.add(batch)
        yield from combiner.flush()


class _NullCollector:
    """A collector without a receiver."""

    def emit(self, batch: pa.RecordBatch) -> None:
        """Drops the batch: it belongs to the output before the savepoint."""

    def emit_to(self, output: str, batch: pa.RecordBatch) -> None:
        """Drops the batch, as `emit` does."""


_NULL_COLLECTOR: Final = _NullCollector()


def _keyed_edge(job: CompiledJob, uid: str) -> tuple[int, EdgeSpec]:
    """The number of the keyed edge into the operator, and the edge."""
    return next(
        (number, edge)
        for number, edge in enumerate(job.graph.edges)
        if edge.target == uid and edge.partitioning is Partitioning.HASH
    )
