"""What an operator with rows inside cannot take or tell yet: batches, the end of its input, event time.

An operator that waits for answers or fills batches holds rows that came earlier. Event time must not overtake them, and
the end must not come before they are out; neither may hold up the slot, so they wait here or in their channel.
"""

from collections import deque
from collections.abc import Callable, Collection

from runtime.core.ids import ChannelId
from runtime.core.messages import Control, EndOfData, Idle, Message, Probe, Records, Watermark
from runtime.ports import Operator


class Restraint:
    """Between one operator and its channels.

    Args:
        operator: None for one that was finished on restore.
        inputs: the channels that it reads.
        send: broadcasts a control message.
    """

    def __init__(
        self, operator: Operator | None, inputs: Collection[ChannelId], send: Callable[[Control], None]
    ) -> None:
        self._operator = operator
        self._reading = set(inputs)  #: not at their true end
        self._send = send
        self._held: deque[Watermark | Idle] = deque()

    def may_take(self, channel: ChannelId, message: Message) -> bool:
        if self._operator is None:
            return True
        if isinstance(message, Records):
            return self._operator.ready(finishing=False)
        last = isinstance(message, EndOfData) and message.drain and self._reading == {channel}
        if last or isinstance(message, Probe):  # a probe asks whether a loop is empty
            return self._operator.ready(finishing=True)
        return True

    def took(self, channel: ChannelId, message: Message) -> None:
        if isinstance(message, EndOfData) and message.drain:
            self._reading.discard(channel)

    def broadcast(self, message: Control) -> None:
        """Sends it now, or when the rows before it are out. Barriers never wait: those rows are in the state."""
        if isinstance(message, Watermark | Idle):
            self._held.append(message)
            self.release()
            return
        if isinstance(message, EndOfData):
            self._end(message.drain)
        self._send(message)

    def release(self) -> None:
        """Sends what need not wait any longer."""
        while self._held and self._is_free(self._held[0]):
            self._send(self._held.popleft())

    def _end(self, drain: bool) -> None:
        """At a true end the rows are out. At a stop they are in the savepoint, and the next attempt tells the time."""
        while drain and self._held:
            self._send(self._held.popleft())
        self._held.clear()

    def _is_free(self, message: Watermark | Idle) -> bool:
        hold = None if self._operator is None else self._operator.watermark_hold()
        return hold is None or (isinstance(message, Watermark) and message.time <= hold)
