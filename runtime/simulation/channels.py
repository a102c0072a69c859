"""Channels between the subtasks of the simulator, and the partitioning of rows over them."""

from collections import deque
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from runtime.core.job.graph import JobGraph, Partitioning
from runtime.core.job.ids import ChannelId
from runtime.core.job.key_groups import key_group_owner
from runtime.core.job.messages import Message, Records
from runtime.simulation.invariants import ChannelChecker
from runtime.simulation.model import MAX_PARALLELISM, ROW_BYTES, Row, Rows, group_of, route

WINDOW_BYTES: Final = 6 * ROW_BYTES  #: small, so that senders often wait for credit


def batch_of(rows: Rows) -> pa.RecordBatch:
    """The batch that the feedback log stores for feedback rows."""
    return pa.RecordBatch.from_pydict({"key": [key for key, _ in rows], "time": [time for _, time in rows]})


def rows_of(batch: pa.RecordBatch) -> Rows:
    return list(zip(*batch.to_pydict().values(), strict=True))


class Channel:
    """A FIFO queue; `checker` checks every message that is pushed."""

    def __init__(self, channel: ChannelId, *, charged: bool) -> None:
        self.queue: deque[Message] = deque()
        self.nbytes = 0
        self.checker = ChannelChecker(channel, WINDOW_BYTES if charged else None)
        self.bytes_before_step = 0  #: bytes queued when the sender's step began

    def push(self, message: Message) -> None:
        self.checker.check_message(message, self.bytes_before_step)
        self.queue.append(message)
        self.nbytes += message.nbytes if isinstance(message, Records) else 0

    def pop(self) -> Message:
        message = self.queue.popleft()
        self.nbytes -= message.nbytes if isinstance(message, Records) else 0
        return message


class RowPartitioner:
    """Distributes the output rows of a subtask over its channels."""

    def __init__(self, graph: JobGraph, channels: Iterable[ChannelId]) -> None:
        self._graph = graph
        self._by_edge: dict[int, list[ChannelId]] = {}
        self._next_target = 0
        for channel in channels:
            self._by_edge.setdefault(channel.edge, []).append(channel)

    def parts(self, rows: Rows) -> list[tuple[ChannelId, Rows]]:
        parts: dict[ChannelId, Rows] = {}
        for edge, channels in self._by_edge.items():
            for row in rows:
                for channel in self._targets(edge, channels, row):
                    parts.setdefault(channel, []).append(row)
        return list(parts.items())

    def _targets(self, edge: int, channels: list[ChannelId], row: Row) -> list[ChannelId]:
        match self._graph.edges[edge].partitioning:
            case Partitioning.FORWARD:
                return channels
            case Partitioning.BROADCAST:
                return channels
            case Partitioning.HASH:
                return [channels[key_group_owner(group_of(row[0]), MAX_PARALLELISM, len(channels))]]
            case Partitioning.REBALANCE:
                self._next_target += 1
                return [channels[self._next_target % len(channels)]]
            case Partitioning.CUSTOM:
                return [channels[route(row[0], len(channels))]]
