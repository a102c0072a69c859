"""One live subtask without a slot: what it sends, and the credit that it gives back, go where a test wants them."""

from collections.abc import Callable, Sequence
from typing import Final

from runtime.core.job.graph import JobGraph
from runtime.core.job.ids import ChannelId, SubtaskId, Token
from runtime.core.job.messages import Message, Records
from runtime.core.subtask.credits import FlowControl
from runtime.core.subtask.poll_policy import PollPolicy
from runtime.core.subtask.spec import spec_of
from runtime.core.subtask.subtask import Subtask
from runtime.dataflow.plan import Edge
from runtime.io.memory.snapshot_store import MemorySnapshotStore
from runtime.ports import Operator, OperatorContext
from runtime.state.backend import SubtaskState
from runtime.task.output import Outputs
from runtime.task.task import Background, Task
from tests.manual_clock import ManualClock

CREDIT: Final = FlowControl(min_bytes=16 * 1024)  #: of receivers whose speed need not be measured first


def grow_batches(policy: PollPolicy) -> PollPolicy:
    """As after the slow start of a fast job."""
    policy.batch_size.rows = 8_192
    return policy


def plain_edges(graph: JobGraph) -> list[Edge]:
    """The edges of a graph, without code."""
    return [Edge(spec=spec) for spec in graph.edges]


def opened(
    graph: JobGraph,
    subtask: SubtaskId,
    operator: Operator,
    clock: ManualClock,
    send: Callable[[ChannelId, Message], None] = lambda channel, message: None,
    consumed: Callable[[ChannelId, int], None] = lambda channel, nbytes: None,
    background: Background = lambda work: None,
    store: MemorySnapshotStore | None = None,
    alignment_timeout_ms: int = 0,
    rows_in_flight: Sequence[tuple[ChannelId, Records]] = (),
) -> Task:
    """Opened and not started. Nobody hears its reports, and nothing is stored without `background`."""
    store = store or MemorySnapshotStore()
    state = SubtaskState(range(graph.max_parallelism), graph.max_parallelism, store)
    context = OperatorContext(
        job="job",
        uid=subtask.operator,
        index=subtask.index,
        parallelism=1,
        max_parallelism=graph.max_parallelism,
        token=Token(1),
        state=state,
        now_ms=clock.now_ms,
    )
    task = Task(
        machine=Subtask(spec_of(graph, subtask, replays_rows=bool(rows_in_flight))),
        operator=operator,
        state=state,
        context=context,
        outputs=Outputs(graph, subtask, send, plain_edges(graph), flow=CREDIT),
        clock=clock,
        store=store,
        report=lambda subtask, report: None,
        return_credit=consumed,
        background=background,
        submit_compaction=lambda work: None,
        rows_in_flight=rows_in_flight,
        alignment_timeout_ms=alignment_timeout_ms,
    )
    grow_batches(task.poll_policy)
    task.open()
    return task
