"""Termination detection for a loop: markers circulate in band until they prove that no record is in flight.

1. The entry is a head without inputs from inside the loop. It emits marker 1, 2, … once the data of all outside inputs
   has ended.
2. A subtask forwards marker r once every inside channel has delivered it; a head also waits for marker r-1 on every
   back-edge.
3. `quiet(r) = min(consecutive rounds without feedback records, min over inside channels of quiet(r), 1 + min over
   back-edges of quiet(r-1))`. The first term exists at heads only.
4. `quiet(r) > heads` proves a round in which no head received records. A record sent before marker r-1 of that round
   would have arrived before marker r, so no record was in flight. Only timers can still emit.
5. A subtask that forwards `quiet(r) > heads` becomes *still*: it fires no timers until it forwards a lower value.
6. `quiet(r) > 2 * heads + 1` at the entry proves a round without feedback records in which every subtask was still: the
   loop has terminated.

An operator must emit its buffered rows before the subtask forwards a marker.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from runtime.core.job.ids import ChannelId
from runtime.core.job.messages import TerminationMarker

ENDED_QUIET_ROUNDS: Final = 2**31  #: the `quiet` value of an ended channel


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPlace:
    """A subtask's place in a loop. `inside`: regular channels from the loop; `back`: its back-edges."""

    inside: frozenset[ChannelId] = frozenset()
    back: frozenset[ChannelId] = frozenset()
    heads: int  #: subtasks of the loop that have back-edges

    @property
    def is_entry(self) -> bool:
        """Whether the subtask is a head without inside channels, which starts the rounds and detects termination."""
        return bool(self.back) and not self.inside


@dataclass(slots=True)
class TerminationDetector:
    """Mutable, owned by a subtask. `outside`: regular channels from outside the loop that have not ended yet."""

    place: LoopPlace
    outside: set[ChannelId]
    round: int = 0  #: of the last marker sent
    is_terminated: bool = False  #: the loop has terminated
    is_quiescing: bool = False  #: timers must not fire
    #: channel -> round -> `TerminationMarker.quiet`
    _quiet_rounds: dict[ChannelId, dict[int, int]] = field(default_factory=dict)
    _ended_channels: set[ChannelId] = field(default_factory=set)
    _silent_rounds: int = 0
    _had_feedback: bool = False  #: feedback records arrived since the last marker was sent

    def on_feedback(self) -> None:
        """Feedback records arrived."""
        self._had_feedback = True

    def on_marker(self, channel: ChannelId, probe: TerminationMarker) -> None:
        """A marker arrived. A marker of another loop is ignored."""
        if channel in self.place.inside or channel in self.place.back:
            self._quiet_rounds.setdefault(channel, {})[probe.round] = probe.quiet

    def on_channel_end(self, channel: ChannelId) -> None:
        """The data of `channel` has ended with EndOfData(drain=True)."""
        self.outside.discard(channel)
        self._ended_channels.add(channel)

    def next_marker(self) -> TerminationMarker | None:
        """The next marker, if it is due."""
        following = self.round + 1
        # the entry has proved the end already
        over = bool(self.place.inside) and self.place.inside <= self._ended_channels
        if self.is_terminated or over or self.outside or not self._is_due(following):
            return None
        value = self._quiet_value(following)
        self.round = following
        self.is_quiescing = value > self.place.heads
        self.is_terminated = self.place.is_entry and value > 2 * self.place.heads + 1
        return None if self.is_terminated else TerminationMarker(following, value)

    def _is_due(self, following: int) -> bool:
        here = self._have_all(self.place.inside, following)
        return here and (following == 1 or self._have_all(self.place.back, following - 1))

    def _have_all(self, channels: Collection[ChannelId], number: int) -> bool:
        return all(
            channel in self._ended_channels or number in self._quiet_rounds.get(channel, ()) for channel in channels
        )

    def _quiet_value(self, following: int) -> int:
        least = self._take_min(self.place.inside, following)
        if not self.place.back:
            return least
        self._silent_rounds = 0 if self._had_feedback or following == 1 else self._silent_rounds + 1
        self._had_feedback = False
        return min(self._silent_rounds, least, 1 + self._take_min(self.place.back, following - 1))

    def _take_min(self, channels: Collection[ChannelId], number: int) -> int:
        """Removes the values of round `number`. Returns their minimum."""
        values = [
            self._quiet_rounds[c].pop(number, ENDED_QUIET_ROUNDS) if c in self._quiet_rounds else ENDED_QUIET_ROUNDS
            for c in channels
        ]
        return min(values, default=ENDED_QUIET_ROUNDS)
