"""Termination detection for a loop: markers circulate in band until they prove that no record is in flight.

1. The entry is a head without inputs from inside the loop. It emits marker 1, 2, … once the data of all outside inputs
   has ended.
2. A subtask forwards marker r once every inside channel has delivered it; a head also waits for marker r-1 on every
   back-edge.
3. `quiet(r) = min(consecutive rounds without feedback records, min over inside channels of quiet(r), 1 + min over
   back-edges of quiet(r-1))`. The first term exists at heads only.
4. `quiet(r) > heads` proves a round in which no head received records. A record sent before marker r-1 of that round
   would have arrived before marker r, so no record was in flight. Only timers can still emit.
5. A subtask that forwards such a value becomes *still*: it fires no timers until it forwards a lower value.
6. `quiet(r) > 2 * heads + 1` at the entry proves a round without feedback records in which every subtask was still: the
   loop has terminated.

An operator must emit its buffered rows before the subtask forwards a marker.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from runtime.core.job.ids import ChannelId
from runtime.core.job.messages import Probe

SILENT: Final = 2**31  #: the `quiet` value of an ended channel


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPlace:
    """A subtask's place in a loop. `inside`: regular channels from the loop; `back`: its back-edges."""

    inside: frozenset[ChannelId] = frozenset()
    back: frozenset[ChannelId] = frozenset()
    heads: int  #: subtasks of the loop that have back-edges

    @property
    def is_entry(self) -> bool:
        """Whether it is a head without inside channels: it starts the rounds and detects termination."""
        return bool(self.back) and not self.inside


@dataclass(slots=True)
class Probing:
    """Mutable, owned by a subtask. `outside`: regular channels from outside the loop that have not ended yet."""

    place: LoopPlace
    outside: set[ChannelId]
    round: int = 0  #: of the last marker sent
    quiet: bool = False  #: the loop has terminated
    still: bool = False  #: timers must not fire
    _said: dict[ChannelId, dict[int, int]] = field(default_factory=dict)  #: channel -> round -> `Probe.quiet`
    _ended: set[ChannelId] = field(default_factory=set)
    _silent_rounds: int = 0
    _heard: bool = False  #: feedback records arrived since the last marker was sent

    def heard(self) -> None:
        """Feedback records arrived."""
        self._heard = True

    def said(self, channel: ChannelId, probe: Probe) -> None:
        """A marker arrived. A marker of another loop is ignored."""
        if channel in self.place.inside or channel in self.place.back:
            self._said.setdefault(channel, {})[probe.round] = probe.quiet

    def ended(self, channel: ChannelId) -> None:
        """The data of `channel` has ended with EndOfData(drain=True)."""
        self.outside.discard(channel)
        self._ended.add(channel)

    def advance(self) -> Probe | None:
        """The next marker, if it is due."""
        following = self.round + 1
        over = bool(self.place.inside) and self.place.inside <= self._ended  # the entry has proved the end already
        if self.quiet or over or self.outside or not self._due(following):
            return None
        value = self._value(following)
        self.round = following
        self.still = value > self.place.heads
        self.quiet = self.place.is_entry and value > 2 * self.place.heads + 1
        return None if self.quiet else Probe(following, value)

    def _due(self, following: int) -> bool:
        here = self._all_said(self.place.inside, following)
        return here and (following == 1 or self._all_said(self.place.back, following - 1))

    def _all_said(self, channels: Collection[ChannelId], number: int) -> bool:
        return all(channel in self._ended or number in self._said.get(channel, ()) for channel in channels)

    def _value(self, following: int) -> int:
        least = self._least(self.place.inside, following)
        if not self.place.back:
            return least
        self._silent_rounds = 0 if self._heard or following == 1 else self._silent_rounds + 1
        self._heard = False
        return min(self._silent_rounds, least, 1 + self._least(self.place.back, following - 1))

    def _least(self, channels: Collection[ChannelId], number: int) -> int:
        """The least value of round `number`; removes the values of that round."""
        values = [self._said[c].pop(number, SILENT) if c in self._said else SILENT for c in channels]
        return min(values, default=SILENT)
