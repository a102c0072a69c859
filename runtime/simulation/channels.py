"""Channels between the subtasks of the simulator: the queues of their input gates."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from runtime.core.job.ids import ChannelId
from runtime.core.job.messages import Barrier, EndOfData, Message, Records, TerminationMarker
from runtime.core.subtask.credits import FlowControl
from runtime.simulation.invariants import ChannelChecker, Violation
from runtime.simulation.model import SCHEMA, Row, Rows, rows_of

#: Some rows, so that senders often wait for credit.
FLOW: Final = FlowControl(max_bytes=150, min_bytes=25, in_flight_ms=3, measured_ms=2)


class Channel:
    """Implements `input_gate.MessageQueue`. A message is in flight until `arrive`."""

    def __init__(self, channel: ChannelId, *, charged: bool) -> None:
        self.channel, self.nbytes = channel, 0
        self._sent_until = 0  #: from a source: the number of polled rows up to the last row sent here
        self._checker = ChannelChecker(channel, FLOW.max_bytes if charged else None)
        self._messages: deque[Message] = deque()
        self._arrived = 0

    def __len__(self) -> int:
        return self._arrived

    def __getitem__(self, index: int) -> Message:
        return self._messages[index]

    def __delitem__(self, index: int) -> None:
        """Takes a barrier out of the queue, which has overtaken the messages before it."""
        del self._messages[index]
        self._arrived -= 1

    @property
    def has_barrier_ahead(self) -> bool:
        """Whether the next message has arrived and is a barrier."""
        return self._arrived > 0 and isinstance(self._messages[0], Barrier)

    @property
    def end_ahead(self) -> EndOfData | TerminationMarker | None:
        """The next message, if it has arrived and asks for the end of the data, or of a loop."""
        message = self._messages[0] if self._arrived else None
        return message if isinstance(message, EndOfData | TerminationMarker) else None

    @property
    def in_flight(self) -> int:
        return len(self._messages) - self._arrived

    def arrive(self, count: int) -> None:
        self._arrived += min(count, self.in_flight)

    def begin_step(self, is_runnable: bool) -> None:
        """A step of the sender begins; `is_runnable`: it has credit."""
        self._checker.begin_step(self.nbytes if is_runnable else None)

    def end_step(self) -> None:
        self._checker.end_step()

    def check(self, message: Message, polled: Sequence[Row] | None = None) -> None:
        """Checks a message that the sender sends. `polled`: all rows that it has read, if it is a source."""
        self._checker.check_message(message)
        if polled is not None and isinstance(message, Records) and message.payload.schema.names == SCHEMA.names:
            self._check_order(rows_of(message.payload), polled)

    def _check_order(self, rows: Rows, polled: Sequence[Row]) -> None:
        for row in rows:
            try:
                self._sent_until = polled.index(row, self._sent_until) + 1
            except ValueError:
                raise Violation("rows-of-a-source-keep-their-order", f"{row} on {self.channel}") from None

    def append(self, message: Message) -> None:
        self._messages.append(message)
        self.nbytes += message.nbytes if isinstance(message, Records) else 0

    def popleft(self) -> Message:
        message = self._messages.popleft()
        self._arrived -= 1
        self.nbytes -= message.nbytes if isinstance(message, Records) else 0
        return message
