"""Input queues of a subtask: a queue per channel, and the order in which channels are read.

Credits bound the queue of a regular channel. Feedback costs no credit, so the queue of a back-edge spills to disk.

The machine decides which channels are readable. The task decides whether the next message may be handled now.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal, Protocol, cast

from runtime.core.job.ids import ChannelId, CheckpointId
from runtime.core.job.messages import Barrier, EndOfPartition, Message, Records
from runtime.core.subtask.subtask import Subtask
from runtime.io.spool import Spool

MAX_FEEDBACK_IN_A_ROW: Final = 16  #: feedback messages before a regular message; fewer would let the loop fill up


class MessageQueue(Protocol):
    """First in, first out."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: Literal[0], /) -> Message: ...
    def append(self, message: Message, /) -> None: ...
    def popleft(self) -> Message: ...


class RegularQueue(MessageQueue, Protocol):
    """The queue of a regular channel, in which a barrier may overtake rows."""

    def __getitem__(self, index: int, /) -> Message: ...
    def __delitem__(self, index: int, /) -> None: ...


QueueFactory = Callable[[ChannelId, bool], MessageQueue]  #: arguments: the channel, and whether it is a back-edge


def message_queue(channel: ChannelId, is_feedback: bool) -> MessageQueue:
    return Spool() if is_feedback else deque()


class InputGate:
    """Owned by the slot's loop.

    Args:
        machine: the subtask's state machine.
        may_handle: whether the next message of a channel may be handled now.
        make_queue: makes the queue of a channel.
    """

    def __init__(
        self,
        machine: Subtask,
        may_handle: Callable[[ChannelId, Message], bool],
        make_queue: QueueFactory = message_queue,
    ) -> None:
        spec = machine.spec
        self._machine, self._may_handle = machine, may_handle
        self._regular, self._feedback = deque(spec.regular_channels), deque(sorted(spec.feedback_channels))
        self._queues = {channel: make_queue(channel, False) for channel in self._regular}
        self._queues |= {channel: make_queue(channel, True) for channel in self._feedback}
        self._feedback_in_a_row = 0  #: consecutive messages taken from back-edges
        self._queued_bytes = dict.fromkeys(self._queues, 0)
        self._recorded = dict[ChannelId, int]()  #: of channels on which rows are recorded: queued messages so far

    @property
    def queued_bytes(self) -> int:
        """Bytes of the batches in all queues."""
        return sum(self._queued_bytes.values())

    def push(self, channel: ChannelId, message: Message) -> None:
        if isinstance(message, Records):
            self._queued_bytes[channel] += message.nbytes
        self._queues[channel].append(message)

    def poll(self) -> tuple[ChannelId, Message] | None:
        """The next message to handle, or None. Feedback has priority, but regular channels (for barriers) get turns."""
        if self._feedback and self._feedback_in_a_row < MAX_FEEDBACK_IN_A_ROW:
            self._feedback_in_a_row += 1
            if (taken := self._next_message(self._feedback)) is not None:
                return taken
        self._feedback_in_a_row = 0
        return self._next_message(self._regular) or self._next_message(self._feedback)

    def restart(self, channels: Iterable[ChannelId], make_queue: QueueFactory) -> None:
        """Drops the messages of regular channels whose senders have restarted."""
        for channel in channels:
            self._queues[channel], self._queued_bytes[channel] = make_queue(channel, False), 0

    def queued_barriers(self) -> dict[ChannelId, Barrier]:
        """The first barrier in the queue of each regular channel; if it may overtake, of a checkpoint to be taken."""
        firsts = {channel: self._first_barrier(self._regular_queue(channel)) for channel in self._regular}
        return {channel: barrier for channel, barrier in firsts.items() if barrier is not None}

    def begin_recording(self) -> None:
        """Rows in the queues belong to a snapshot from now on."""
        self._recorded = dict.fromkeys(self._machine.recorded_channels, 0)

    def take_overtaken(
        self, channel: ChannelId, checkpoint: CheckpointId
    ) -> Iterator[Records | Barrier | EndOfPartition]:
        """The queued messages that the barrier of `checkpoint` overtakes, and then the barrier if it has arrived.

        Each message is returned once. Only the barrier is removed.
        """
        queue, position = self._regular_queue(channel), self._recorded.pop(channel, 0)
        while position < len(queue):
            message = queue[position]
            if isinstance(message, Barrier) and message.checkpoint == checkpoint:
                del queue[position]
                yield message
                return
            position += 1
            if isinstance(message, EndOfPartition):
                yield message
                return
            if isinstance(message, Records):
                yield message
        self._recorded[channel] = position

    def _regular_queue(self, channel: ChannelId) -> RegularQueue:
        queue = self._queues[channel]
        assert not isinstance(queue, Spool), "only back-edges have a queue on disk"
        return cast(RegularQueue, queue)

    def _first_barrier(self, queue: RegularQueue) -> Barrier | None:
        messages = (queue[position] for position in range(len(queue)))
        barriers: Iterator[Barrier] = (message for message in messages if isinstance(message, Barrier))
        if self._machine.spec.overtakes:  # else rows are emitted without credit, and a barrier must follow them
            barriers = filter(self._machine.is_awaited, barriers)
        return next(barriers, None)

    @property
    def is_starved(self) -> bool:
        """Whether no readable channel has a message."""
        return not any(queue and self._machine.is_readable(channel) for channel, queue in self._queues.items())

    def close(self) -> None:
        for queue in self._queues.values():
            if isinstance(queue, Spool):
                queue.close()

    def _next_message(self, turn: deque[ChannelId]) -> tuple[ChannelId, Message] | None:
        """The next message that may be handled, trying the channels in turn."""
        for _ in range(len(turn)):
            channel = turn[0]
            turn.rotate(-1)
            queue = self._queues[channel]
            if queue and self._machine.is_readable(channel) and self._may_handle(channel, queue[0]):
                message = queue.popleft()
                if self._recorded and self._recorded.get(channel):
                    self._recorded[channel] -= 1
                if isinstance(message, Records):
                    self._queued_bytes[channel] -= message.nbytes
                return channel, message
        return None
