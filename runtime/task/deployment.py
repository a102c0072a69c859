"""Deployment: the tasks of a slot from a compiled job and the restored state of its subtasks.

A slot of production and a slot of the simulator deploy alike; they differ in their `TaskHost`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Protocol

from runtime.core.attempt.failover_regions import numbering_senders
from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.ids import ChannelId, OperatorId, SubtaskId, Token
from runtime.core.job.messages import Message
from runtime.core.restore.state_assignment import SubtaskRestore
from runtime.core.snapshot.control import SnapshotAnswer, SubtaskReport
from runtime.core.snapshot.manifest import SET_ASIDE_TIMES
from runtime.core.snapshot.row_numbers import RepeatedChannel, RepeatedRows, SplitCuts
from runtime.core.subtask.credits import FlowControl
from runtime.core.subtask.poll_policy import PollPolicy
from runtime.core.subtask.spec import spec_of
from runtime.core.subtask.subtask import Subtask
from runtime.core.subtask.watermark_alignment import channel_drifts, meeting_edges, waiting_edges
from runtime.dataflow.plan import CompiledJob, source_with_input
from runtime.errors import OperatorFailure
from runtime.ports import Clock, EncodesTexts, Operator, OperatorContext, SnapshotStore
from runtime.state.backend import SubtaskState
from runtime.state.files.compaction import DEFAULT_POLICY, CompactionPolicy
from runtime.state.index.key_types import KeyTypes
from runtime.task.feedback_log import replay_records
from runtime.task.input_gate import QueueFactory, message_queue
from runtime.task.output import Outputs
from runtime.task.rows_in_flight import replayed_rows
from runtime.task.source_operator import SourceOperator
from runtime.task.task import Task


class TaskHost(Protocol):
    """The surroundings of tasks: a slot."""

    @property
    def clock(self) -> Clock: ...
    def wake(self) -> None:
        """Wakes the loop, which then checks every task. Thread-safe."""

    def send(self, channel: ChannelId, message: Message) -> None: ...
    def return_credit(self, channel: ChannelId, nbytes: int) -> None: ...
    def report(self, subtask: SubtaskId, report: SubtaskReport) -> None:
        """Sends a report to the master."""

    def run_in_background(self, subtask: SubtaskId, work: Callable[[], SnapshotAnswer]) -> None:
        """Runs the asynchronous part of a snapshot off the loop, and sends its report to the master."""

    def compact(self, work: Callable[[], None]) -> None:
        """Runs the compaction of state files off the loop."""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """The facts that the tasks of a slot share.

    Args:
        inputs: listings of sources, see `ports.ListsInput`.
        processed: rows that surviving receivers have processed.
        flow: the windows of flow control.
        compaction: when state files are merged.
        make_queue: makes the queue of an input channel.
        alignment_timeout_ms: as in `CoordinatorSettings`.
    """

    job: CompiledJob
    job_id: str
    token: Token
    mode: CheckpointMode
    store: SnapshotStore
    host: TaskHost
    inputs: Mapping[OperatorId, bytes] = field(default_factory=dict)
    processed: Collection[RepeatedChannel] = ()
    flow: FlowControl = FlowControl()
    compaction: CompactionPolicy = DEFAULT_POLICY
    make_queue: QueueFactory = message_queue
    alignment_timeout_ms: int = 0

    def create_tasks(
        self, assigned: Iterable[SubtaskRestore], surviving: Mapping[SubtaskId, Task] = {}
    ) -> dict[SubtaskId, Task]:
        """The tasks, not opened yet, in the order of `assigned`. `surviving`: further tasks of the slot.

        Raises:
            OperatorFailure: an author's code raised where an operator is made.
            EnvironmentFailure: the state cannot be read; `CorruptState` if a file is damaged.
            JobRejected: restored rows in flight have other columns than this version sends.
        """
        tasks = {restored.subtask: self._create_task(restored) for restored in assigned}
        machines = {subtask: task.machine for subtask, task in (*surviving.items(), *tasks.items())}
        for subtask, task in tasks.items():
            if task.machine.is_source:
                task.poll_policy = self._poll_policy(subtask, machines)
        return tasks

    def context_of(self, restored: SubtaskRestore) -> OperatorContext:
        """The context of a subtask, with its restored state."""
        graph, uid = self.job.graph, restored.subtask.operator
        context = OperatorContext(
            job=self.job_id,
            uid=uid,
            index=restored.subtask.index,
            parallelism=graph.by_uid[uid].parallelism,
            max_parallelism=graph.max_parallelism,
            token=self.token,
            state=None,  # type: ignore[arg-type]  # set below: state needs the context's key groups
            now_ms=self.host.clock.now_ms,
            wake=self.host.wake,
            restored=bool(restored.snapshots),
            refuses_late_rows=uid in self.job.refuses_late_rows,
        )
        context.state = state = SubtaskState(
            context.key_groups,
            graph.max_parallelism,
            self.store,
            graph.key_types_of(uid),
            graph.value_types_of(uid),
            self.compaction,
        )
        state.restore(restored)
        state.discard(SET_ASIDE_TIMES)  # a step that sets rows aside declares it
        return context

    def create_operator(self, subtask: SubtaskId) -> Operator:
        """Raises OperatorFailure if an author's code raised."""
        job, uid = self.job, subtask.operator
        try:
            if uid not in job.sources:
                return job.operators[uid]()
            source = source_with_input(job.sources[uid], self.inputs.get(uid))
            if job.encodes_texts(uid) and isinstance(source, EncodesTexts):
                source = source.with_encoded_texts()
            return SourceOperator(source.reader(), confirms=not job.is_isolated)
        except Exception as error:
            raise OperatorFailure(uid, subtask.index, "its making", error) from error

    def _create_task(self, restored: SubtaskRestore) -> Task:
        job, host, subtask = self.job, self.host, restored.subtask
        context = self.context_of(restored)
        state: Any = context.state
        outputs = Outputs(
            job.graph,
            subtask,
            host.send,
            job.edges,
            job.columns_of(subtask.operator),
            self.flow,
            self._repeated_rows(subtask),
        )
        rows_in_flight = list(replayed_rows(self.store, job, restored))
        replays = bool(restored.feedback), bool(rows_in_flight)
        spec = spec_of(job.graph, subtask, restored.watermark, restored.finished, self.mode, *replays)
        return Task(
            machine=Subtask(spec),
            operator=None if restored.finished else self.create_operator(subtask),
            state=state,
            context=context,
            outputs=outputs,
            clock=host.clock,
            store=self.store,
            report=host.report,
            return_credit=host.return_credit,
            background=partial(host.run_in_background, subtask),
            submit_compaction=host.compact,
            replays=replay_records(self.store, restored.feedback),
            rows_in_flight=rows_in_flight,
            alignment_timeout_ms=self.alignment_timeout_ms,
            key_types=KeyTypes(subtask.operator, restored.snapshots),
            flow=self.flow,
            make_queue=self.make_queue,
            cuts=self._cuts(subtask),
            passes_numbers=subtask.operator in self._numbered_senders,
        )

    @cached_property
    def _numbered_senders(self) -> Mapping[OperatorId, OperatorId]:
        if self.mode is CheckpointMode.AT_LEAST_ONCE:  # no receiver keeps its state
            return {}
        return numbering_senders(self.job.graph, self.job.failover_rules)

    def _source_of(self, subtask: SubtaskId) -> SubtaskId | None:
        """The source subtask that numbers the rows of `subtask`, in the same slot; None: they have no numbers."""
        source = self._numbered_senders.get(subtask.operator)
        return None if source is None else SubtaskId(source, subtask.index)

    def _repeated_rows(self, sender: SubtaskId) -> dict[ChannelId, RepeatedRows]:
        return {
            each.channel: RepeatedRows(each.ends, each.rows, each.keys)
            for each in self.processed
            if self.job.graph.source(each.channel) == sender
        }

    def _cuts(self, subtask: SubtaskId) -> SplitCuts | None:
        """Where a source cuts its batches: at the rows that receivers have processed. None: it numbers no rows."""
        if self._source_of(subtask) != subtask:
            return None
        repeated = [each for each in self.processed if self._source_of(self.job.graph.source(each.channel)) == subtask]
        return SplitCuts(end for each in repeated for end in each.ends.items())

    def _poll_policy(self, source: SubtaskId, machines: Mapping[SubtaskId, Subtask]) -> PollPolicy:
        job = self.job
        panes_ms = {n: edge.pre_aggregation.pane_ms for n, edge in enumerate(job.edges) if edge.pre_aggregation}
        drifts_ms = {n: edge.drift_ms for n, edge in enumerate(job.edges) if edge.drift_ms is not None}
        waiting, pre_aggregated = waiting_edges(job.graph, source.operator, drifts_ms), set(panes_ms)
        if (max_drift_ms := job.max_drifts_ms.get(source.operator)) is not None:
            waiting, pre_aggregated = dict.fromkeys(meeting_edges(job.graph, source.operator), max_drift_ms), set()
        return PollPolicy(
            channel_drifts(job.graph, source, waiting, machines, pre_aggregated),
            channel_drifts(job.graph, source, waiting_edges(job.graph, source.operator, panes_ms), machines),
        )
