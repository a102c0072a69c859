"""The operators of workload W2 (tumbling windows) without a runtime: an upper bound for the machine.

`python -m benchmarks.kernels INDEX PARALLELISM ROWS` drives subtask INDEX of each operator by direct calls. It polls
the source, pre-aggregates and partitions as the job would, and calls the next operator. It prints a line when ready,
waits for a line on stdin, and prints seconds and processor seconds. There are no channels, barriers, snapshots or
threads, and no communication between two processes.

Input from other processes is replaced: a process handles its own share of each batch once per process. The shares of
the other processes have the same size and the same range of keys.
"""

import sys
import time
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from benchmarks.slots import named_totals
from benchmarks.systems.weir import window
from runtime.connectors.sinks.discard import STATE_NAME, DiscardSink
from runtime.connectors.sources.sequence import SequenceSource
from runtime.core.job.graph import Partitioning
from runtime.core.job.ids import ChannelId, OperatorId, SubtaskId
from runtime.core.job.messages import MAX_WATERMARK, Message, Records, Watermark
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.plan import CompiledJob
from runtime.ports import OperatorContext
from runtime.state.backend import SubtaskState
from runtime.task.output import Outputs
from spark_jobs.batch.subtask import JobFacts, context_of, empty_state

KEYS: Final = 100_003
READY_LINE: Final = "ready"
_SOURCE, _SINK = OperatorId("numbers"), OperatorId("out")
_POLL_ROWS: Final = 65_536
_WARM_UP_ROWS: Final = 3_000_000


def job(rows: int, keys: int = KEYS) -> Dataflow:
    flow = Dataflow("kernels")
    window(flow.source(_SOURCE, SequenceSource(rows=rows, keys=keys))).sink(_SINK, DiscardSink())
    return flow


class DrivenSubtasks:
    """Subtask `index` of each operator of a job."""

    def __init__(self, job: CompiledJob, index: int) -> None:
        self._job, self._index = job, index
        self._states: dict[OperatorId, SubtaskState] = {}
        self._outputs = {uid: self._outputs_of(uid) for uid in job.graph.by_uid}
        self._reader = job.sources[_SOURCE].reader()
        self._reader.open(self._context(_SOURCE))
        self._operators = {uid: make() for uid, make in job.operators.items()}
        for uid, operator in self._operators.items():
            operator.open(self._context(uid))

    def run(self) -> None:
        """Runs the subtasks from the first poll to the last window."""
        reader, outputs, reached = self._reader, self._outputs[_SOURCE], -1
        while not reader.exhausted:
            batch = reader.poll(_POLL_ROWS)
            if batch is not None:
                outputs.emit(batch)
            watermark = reader.watermark()
            if watermark is not None and watermark > reached:
                reached = watermark
                outputs.broadcast(Watermark(watermark))
        outputs.broadcast(Watermark(MAX_WATERMARK))

    def feed(self, batches: Iterable[tuple[pa.RecordBatch, int]]) -> None:
        """Runs the subtasks behind the source over batches, each followed by a watermark (ms)."""
        outputs = self._outputs[_SOURCE]
        for batch, watermark in batches:
            outputs.emit(batch)
            outputs.broadcast(Watermark(watermark))

    def sink_totals(self) -> dict[str, int]:
        """The totals of the sink's discarded rows."""
        sink = self._operators[_SINK]
        sink.prepare_snapshot_pre_barrier(1, self._outputs[_SINK])
        sink.snapshot(1)
        return named_totals(self._states[_SINK].capture(full=True).lists[STATE_NAME])

    def _send(self, channel: ChannelId, message: Message) -> None:
        if channel.target != self._index:
            return
        edge = self._job.graph.edges[channel.edge]
        operator, outputs = self._operators[edge.target], self._outputs[edge.target]
        if isinstance(message, Records):
            for _ in range(self._job.graph.parallelism if edge.partitioning is Partitioning.HASH else 1):
                operator.process(edge.input, message.payload, outputs)
        elif isinstance(message, Watermark):
            operator.on_watermark(message.time, outputs)
            outputs.broadcast(message)

    def _outputs_of(self, uid: OperatorId) -> Outputs:
        job = self._job
        return Outputs(job.graph, SubtaskId(uid, self._index), self._send, job.partitioners, job.pre_aggregations)

    def _context(self, uid: OperatorId) -> OperatorContext:
        facts, parallelism = JobFacts.of(self._job), self._job.graph.by_uid[uid].parallelism
        state = self._states[uid] = empty_state(facts, self._index, parallelism)
        return context_of(facts, uid, self._index, parallelism, lambda: 0, state)


def write_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    index, parallelism, rows = map(int, sys.argv[1:])
    DrivenSubtasks(job(_WARM_UP_ROWS).compile(parallelism), index).run()
    driven = DrivenSubtasks(job(rows).compile(parallelism), index)
    write_line(READY_LINE)
    sys.stdin.readline()
    began, worked = time.perf_counter(), time.process_time()
    driven.run()
    write_line(f"{time.perf_counter() - began} {time.process_time() - worked}")


if __name__ == "__main__":
    main()
