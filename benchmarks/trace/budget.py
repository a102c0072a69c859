"""The budget of the traced paths and turns, which a slow test holds: every limit can only fall, to its goal."""

from dataclasses import dataclass
from typing import Final

ROW: Final = "a row, from the poll to the committed file"
BARRIER: Final = "a barrier, from its trigger to the completed checkpoint"
SAVEPOINT: Final = "a savepoint over REST, from the request to the answer"
FORWARDING: Final = "the forwarding subtask alone"


@dataclass(frozen=True, slots=True)
class Budget:
    """`limit`: somewhat above the largest of seven measurements on a quiet machine; a change may only lower it."""

    goal: int
    limit: int


#: Hops by path. A savepoint over REST has more if its state is polled more often.
MAX_HOPS: Final = {ROW: Budget(100, 144), BARRIER: Budget(60, 157), SAVEPOINT: Budget(120, 250)}
MAX_HANDOVERS: Final = {BARRIER: Budget(9, 15)}
#: Calls of the median turn: the shortest varies from 117 to 137, the median from 142 to 146.
MAX_CALLS: Final = {FORWARDING: Budget(60, 160)}
