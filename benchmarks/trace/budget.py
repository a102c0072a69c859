"""The budget of the traced paths and turns, which a slow test holds: every limit can only fall, to its goal."""

from dataclasses import dataclass
from typing import Final

ROW: Final = "a row, from the poll to the committed file"
BARRIER: Final = "a barrier, from its trigger to the completed checkpoint"
SAVEPOINT: Final = "a savepoint over REST, from the request to the answer"
FORWARDING: Final = "the forwarding subtask alone"


@dataclass(frozen=True, slots=True)
class Limit:
    """`measured`: the largest permitted figure: the largest of several measurements where the goal is not reached."""

    goal: int
    measured: int


#: Hops by path.
MAX_HOPS: Final = {ROW: Limit(100, 146), BARRIER: Limit(60, 157), SAVEPOINT: Limit(120, 233)}
MAX_HANDOVERS: Final = {BARRIER: Limit(9, 15)}
#: Calls of the shortest turn: longer turns have taken several messages, or a timer was due.
MAX_CALLS: Final = {FORWARDING: Limit(60, 119)}
