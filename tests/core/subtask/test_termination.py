"""The proof that a loop has come to its end, alone and among many subtasks."""

from collections import deque
from random import Random

import pytest

from runtime.core.job.ids import ChannelId
from runtime.core.job.messages import TerminationMarker
from runtime.core.subtask.termination import ENDED_QUIET_ROUNDS, LoopPlace, TerminationDetector

OUT, IN, ROUND, ELSEWHERE = ChannelId(0, 0, 0), ChannelId(1, 0, 0), ChannelId(2, 0, 0), ChannelId(3, 0, 0)
ENTRY = LoopPlace(back=frozenset({ROUND}), heads=1)
BODY = LoopPlace(inside=frozenset({IN}), heads=1)
INNER = LoopPlace(inside=frozenset({IN}), back=frozenset({ROUND}), heads=2)


def entry() -> TerminationDetector:
    probing = TerminationDetector(ENTRY, {OUT})
    probing.on_channel_end(OUT)
    return probing


def test_the_first_round_begins_when_all_from_outside_has_ended() -> None:
    """S4-41."""
    probing = TerminationDetector(ENTRY, {OUT, ELSEWHERE})
    probing.on_channel_end(OUT)
    assert probing.next_marker() is None
    probing.on_channel_end(ELSEWHERE)
    assert probing.next_marker() == TerminationMarker(1, 0)
    assert probing.next_marker() is None, "the first has not come round"


def test_the_loop_is_at_its_end_after_more_silent_rounds_than_there_are_heads() -> None:
    """S4-41."""
    probing = entry()
    probing.next_marker()
    probing.on_marker(ROUND, TerminationMarker(1, 0))
    assert probing.next_marker() == TerminationMarker(2, 1)
    assert not probing.is_quiescing
    for number in (3, 4):
        probing.on_marker(ROUND, TerminationMarker(number - 1, number - 2))
        assert probing.next_marker() == TerminationMarker(number, number - 1)
        assert probing.is_quiescing, "no timer may begin anew what is over"
    probing.on_marker(ROUND, TerminationMarker(4, 3))
    assert probing.next_marker() is None
    assert probing.is_terminated
    assert probing.next_marker() is None, "it is proven once"


def test_who_was_still_goes_on_when_something_has_come_round_after_all() -> None:
    probing = TerminationDetector(BODY, set())
    probing.on_marker(IN, TerminationMarker(1, 2))
    probing.next_marker()
    was = probing.is_quiescing
    probing.on_marker(IN, TerminationMarker(2, 1))
    probing.next_marker()
    assert (was, probing.is_quiescing) == (True, False)


def test_records_that_come_round_begin_the_count_anew() -> None:
    probing = entry()
    probing.on_feedback()
    probing.next_marker()
    probing.on_feedback()
    probing.on_marker(ROUND, TerminationMarker(1, 0))
    assert probing.next_marker() == TerminationMarker(2, 0)
    probing.on_marker(ROUND, TerminationMarker(2, 0))
    assert probing.next_marker() == TerminationMarker(3, 1)


def test_what_others_say_limits_what_a_head_says() -> None:
    probing = TerminationDetector(INNER, set())
    assert probing.next_marker() is None
    probing.on_marker(IN, TerminationMarker(1, 0))
    assert probing.next_marker() == TerminationMarker(1, 0)
    probing.on_marker(IN, TerminationMarker(2, 0))
    assert probing.next_marker() is None, "its own round is not back"
    probing.on_marker(ROUND, TerminationMarker(1, 0))
    assert probing.next_marker() == TerminationMarker(2, 0), "the least of all"


def test_a_subtask_of_the_body_passes_a_round_on_when_all_within_have_brought_it() -> None:
    probing = TerminationDetector(BODY, {OUT})
    probing.on_marker(IN, TerminationMarker(1, 5))
    probing.on_marker(ELSEWHERE, TerminationMarker(1, 0))
    assert probing.next_marker() is None, "something may still come from outside"
    probing.on_channel_end(OUT)
    assert probing.next_marker() == TerminationMarker(1, 5)
    probing.on_channel_end(IN)
    assert probing.next_marker() is None, "the loop's data has ended: there is nothing to prove"


def test_a_back_edge_that_has_ended_is_silent_for_ever() -> None:
    probing = TerminationDetector(LoopPlace(back=frozenset({ROUND, IN}), heads=1), set())
    probing.on_channel_end(IN)
    probing.next_marker()
    probing.on_marker(ROUND, TerminationMarker(1, ENDED_QUIET_ROUNDS))
    assert probing.next_marker() == TerminationMarker(2, 1)
    probing.on_channel_end(ROUND)
    assert [probing.next_marker(), probing.next_marker(), probing.next_marker()] == [
        TerminationMarker(3, 2),
        TerminationMarker(4, 3),
        None,
    ]
    assert probing.is_terminated


# ---------------------------------------------------------------- many subtasks, any order

Wires = dict[tuple[str, str], bool]  #: from, to; whether it leads back

SIMPLE: Wires = {("h", "b"): False, ("b", "h"): True}
WIDE: Wires = {(a, b): a[0] == "b" for a in ("h1", "h2", "b1", "b2") for b in ("h1", "h2", "b1", "b2") if a[0] != b[0]}
NESTED: Wires = {("o", "i"): False, ("i", "b"): False, ("b", "i"): True, ("b", "c"): False, ("c", "o"): True}
CROSSING: Wires = {("h1", "b1"): False, ("h2", "b2"): False, ("b1", "h2"): True, ("b2", "h1"): True}
TWISTED: Wires = {("h1", "b1"): False, ("h2", "b2"): False, ("b1", "h2"): True, ("b2", "h1"): True, ("b1", "h1"): True}


class Ring:
    """Records with hops left go round over ordered wires; each step one random message is handled."""

    def __init__(self, wires: Wires, rng: Random) -> None:
        self.timers = 60  #: of their own accord subtasks put out so many records
        self.rng, names = rng, sorted({name for wire in wires for name in wire})
        self.queues: dict[tuple[str, str], deque[int | TerminationMarker]] = {wire: deque() for wire in wires}
        self.ids = {wire: ChannelId(number, 0, 0) for number, wire in enumerate(wires)}
        heads = {to for (_, to), leads_back in wires.items() if leads_back}
        self.back = {self.ids[wire] for wire, leads_back in wires.items() if leads_back}
        self.subtasks = {
            name: TerminationDetector(
                LoopPlace(
                    inside=frozenset(self.ids[w] for w, leads_back in wires.items() if w[1] == name and not leads_back),
                    back=frozenset(self.ids[w] for w, leads_back in wires.items() if w[1] == name and leads_back),
                    heads=len(heads),
                ),
                set(),
            )
            for name in names
        }

    def send(self, name: str, message: int | TerminationMarker) -> None:
        out = [wire for wire in self.queues if wire[0] == name]
        for wire in out if isinstance(message, TerminationMarker) else [self.rng.choice(out)]:
            self.queues[wire].append(message)

    def step(self) -> None:
        name, probing = self.rng.choice(list(self.subtasks.items()))
        if self.timers and not probing.is_quiescing and self.rng.random() < 0.02:
            self.timers -= 1
            self.send(name, 7)
        full = [wire for wire, queue in self.queues.items() if queue and wire[1] == name]
        if full:
            wire = self.rng.choice(full)
            self.take(name, probing, wire, self.queues[wire].popleft())
        while (probe := probing.next_marker()) is not None:
            self.send(name, probe)

    def take(
        self, name: str, probing: TerminationDetector, wire: tuple[str, str], message: int | TerminationMarker
    ) -> None:
        if isinstance(message, TerminationMarker):
            probing.on_marker(self.ids[wire], message)
            return
        if self.ids[wire] in self.back:
            probing.on_feedback()
        if message > 0:
            self.send(name, message - 1)

    @property
    def records(self) -> int:
        return sum(not isinstance(message, TerminationMarker) for queue in self.queues.values() for message in queue)


@pytest.mark.parametrize("wires", [SIMPLE, WIDE, NESTED, CROSSING, TWISTED])
def test_a_proof_is_never_wrong_and_always_comes(wires: Wires) -> None:
    """S4-41: whatever the shape of the loop and the order in which things happen."""
    for seed in range(60):
        ring = Ring(wires, Random(seed))
        for hops in range(6):
            ring.send(ring.rng.choice(list(ring.subtasks)), hops * 4)
        steps = 0
        while not any(probing.is_terminated for probing in ring.subtasks.values()):
            ring.step()
            steps += 1
            assert steps < 20_000, "no proof"
        assert ring.records == 0, f"seed {seed}: records were on their way"
