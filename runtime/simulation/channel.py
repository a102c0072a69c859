"""A channel between two subtasks: a FIFO queue with checks of its invariants."""

from collections import deque
from typing import Final

from runtime.core.job.ids import ChannelId
from runtime.core.job.messages import Message, Records
from runtime.simulation.invariants import ChannelChecker
from runtime.simulation.model import ROW_BYTES

WINDOW_BYTES: Final = 6 * ROW_BYTES  #: small, so that senders often wait for credit
INITIAL_CREDIT_BYTES: Final = 4 * ROW_BYTES


class Channel:
    """A FIFO queue; `watch` checks every message that is pushed."""

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
