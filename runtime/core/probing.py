"""The end of a loop: proof that nothing is on its way in it any more, by probes that go round in band.

Once all that feeds the loop from outside has truly ended, a head that nothing inside precedes sends probe after probe.
Every subtask of the loop sends probe r on when all its inputs have brought it, and a head when all its back-edges have
brought probe r - 1. A head's value is the number of rounds in a row up to r in which no records came round to it, and
no more than what its inputs say, a back-edge's word counting one more: it is a round older. When a head's value exceeds
the number of heads, there was one round in which none of them heard anything. What each had sent before its probe
r - 1 of that round would have come round before its probe r; so there was nothing, and nobody could begin anew, were it
not for timers. So whoever passes such a value on is *still* from then on: it fires no timer, as after the end of its
data, until it hears a lower one. And a head that has counted as many rounds again knows that all were still in one in
which none heard anything.

It does not know records, barriers or time. What an operator has inside must have left it before it passes a probe on.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from runtime.core.ids import ChannelId
from runtime.core.messages import Probe

SILENT: Final = 2**31  #: what a channel says that has ended: nothing will come on it


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPlace:
    """A subtask's place in a loop. `inside` are the regular channels from within it, `back` its back-edges."""

    inside: frozenset[ChannelId] = frozenset()
    back: frozenset[ChannelId] = frozenset()
    heads: int  #: subtasks of the loop that have back-edges

    @property
    def is_entry(self) -> bool:
        """A head that nothing inside precedes: it begins the rounds, and proves the end."""
        return bool(self.back) and not self.inside


@dataclass(slots=True)
class Probing:
    """Mutable, owned by one subtask machine. `outside` are the regular channels from without, not yet truly ended."""

    place: LoopPlace
    outside: set[ChannelId]
    round: int = 0  #: of the last probe sent
    quiet: bool = False  #: proven: nothing is on its way, and nothing will be
    still: bool = False  #: nothing may be put out of its own accord
    _said: dict[ChannelId, dict[int, int]] = field(default_factory=dict)  #: values by round
    _ended: set[ChannelId] = field(default_factory=set)
    _silent_rounds: int = 0
    _heard: bool = False  #: records came round since the last probe was sent

    def heard(self) -> None:
        """Records came on a back-edge."""
        self._heard = True

    def said(self, channel: ChannelId, probe: Probe) -> None:
        """A probe came. One that comes from another loop says nothing here."""
        if channel in self.place.inside or channel in self.place.back:
            self._said.setdefault(channel, {})[probe.round] = probe.quiet

    def ended(self, channel: ChannelId) -> None:
        """No record will come on `channel`: it has truly ended, or is gone."""
        self.outside.discard(channel)
        self._ended.add(channel)

    def advance(self) -> Probe | None:
        """The next probe, if it is due."""
        following = self.round + 1
        over = bool(self.place.inside) and self.place.inside <= self._ended  # its data has ended: nothing to prove
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
        """The least value of round `number`, which is not asked for again."""
        values = [self._said[c].pop(number, SILENT) if c in self._said else SILENT for c in channels]
        return min(values, default=SILENT)
