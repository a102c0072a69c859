"""What has come to one subtask and waits: a queue per channel, and whose turn it is.

Whether a channel may be read is the machine's matter, and whether a message may be taken now the task's.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from runtime.core.ids import ChannelId
from runtime.core.messages import Message
from runtime.core.subtask import Subtask
from runtime.io.spool import Spool

ROUNDS_FIRST: Final = 16  #: messages that come round are taken before one from outside, or a loop would fill up


class Inbox:
    """Owned by the slot's loop.

    Args:
        machine: of the subtask.
        may_take: whether the next message of a channel may be taken now.
    """

    def __init__(self, machine: Subtask, may_take: Callable[[ChannelId, Message], bool]) -> None:
        spec = machine.spec
        self._machine, self._may_take = machine, may_take
        self._queues = {channel: Spool() for channel in spec.inputs}
        self._regular, self._back = deque(spec.regular), deque(sorted(spec.feedback))
        self._rounds = 0  #: messages taken in a row that came round

    def push(self, channel: ChannelId, message: Message) -> None:
        self._queues[channel].push(message)

    def take(self) -> tuple[ChannelId, Message] | None:
        """One message. What comes round goes first, but now and then one from outside: barriers come from there."""
        if self._rounds < ROUNDS_FIRST:
            return self._take_round() or self._take_regular()
        return self._take_regular() or self._take_round()

    @property
    def starved(self) -> bool:
        """Whether nothing waits that the machine would read."""
        return not any(queue and self._machine.readable(channel) for channel, queue in self._queues.items())

    def close(self) -> None:
        for queue in self._queues.values():
            queue.close()

    def _take_round(self) -> tuple[ChannelId, Message] | None:
        taken = self._next(self._back)
        self._rounds += taken is not None
        return taken

    def _take_regular(self) -> tuple[ChannelId, Message] | None:
        self._rounds = 0
        return self._next(self._regular)

    def _next(self, turn: deque[ChannelId]) -> tuple[ChannelId, Message] | None:
        """The next message that may be taken, of these channels in turn."""
        for _ in range(len(turn)):
            channel = turn[0]
            turn.rotate(-1)
            queue = self._queues[channel]
            if queue and self._machine.readable(channel) and self._may_take(channel, queue.peek()):
                return channel, queue.pop()
        return None
