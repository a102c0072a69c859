"""Watermark hold (as in Beam): delays watermarks and the end of input while an operator buffers rows.

An operator that awaits answers or fills batches buffers earlier rows. A watermark must not overtake them, and the end
of input must not arrive before they are emitted. Neither may block the slot: watermarks wait here, batches in their
channel, and the end of input in the machine (`MessageHeld`), where barriers pass it.
"""

from collections import deque
from collections.abc import Callable, Collection

from runtime.core.job.ids import ChannelId
from runtime.core.job.messages import Control, EndOfData, Idle, Message, Records, TerminationMarker, Watermark
from runtime.ports import Operator


class WatermarkHold:
    """Sits between an operator and its channels.

    Args:
        operator: None if the restored checkpoint marks it as finished.
        inputs: the channels that the operator reads.
        send: broadcasts a control message.
    """

    def __init__(
        self, operator: Operator | None, inputs: Collection[ChannelId], send: Callable[[Control], None]
    ) -> None:
        self._operator = operator
        self._open_inputs = set(inputs)  #: channels without a draining `EndOfData` so far
        self._send = send
        self._held_messages: deque[Watermark | Idle] = deque()

    def may_handle(self, message: Message) -> bool:
        """Whether the operator takes the message from its channel now."""
        if self._operator is None or not isinstance(message, Records):
            return True
        return self._operator.ready(finishing=False)

    def must_hold(self, channel: ChannelId, message: EndOfData | TerminationMarker) -> bool:
        """Whether the message waits for buffered rows: the last end of input, or the marker of a loop.

        A marker asks whether the loop is empty.
        """
        is_last = isinstance(message, EndOfData) and message.drain and self._open_inputs == {channel}
        return (is_last or isinstance(message, TerminationMarker)) and not self.is_flushed()

    def is_flushed(self) -> bool:
        """Whether the operator has emitted its buffered rows, so that its input may end."""
        return self._operator is None or self._operator.ready(finishing=True)

    def on_end_of_data(self, channel: ChannelId) -> None:
        """The data of `channel` has ended for good."""
        self._open_inputs.discard(channel)

    def broadcast(self, message: Control) -> None:
        """Sends a watermark or `Idle` after earlier rows, any other message at once: barriers cover buffered rows."""
        if isinstance(message, Watermark | Idle):
            self._held_messages.append(message)
            self.release()
            return
        if isinstance(message, EndOfData):
            self._before_end_of_data(message.drain)
        self._send(message)

    def release(self) -> None:
        """Sends held messages that no longer overtake a buffered row."""
        while self._held_messages and self._may_send(self._held_messages[0]):
            self._send(self._held_messages.popleft())

    def _before_end_of_data(self, drain: bool) -> None:
        """Sends held watermarks at a drain. A stop drops them: the next attempt emits their rows from the savepoint."""
        while drain and self._held_messages:
            self._send(self._held_messages.popleft())
        self._held_messages.clear()

    def _may_send(self, message: Watermark | Idle) -> bool:
        hold = None if self._operator is None else self._operator.watermark_hold()
        return hold is None or (isinstance(message, Watermark) and message.time <= hold)
