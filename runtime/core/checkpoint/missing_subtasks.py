"""The subtasks whose acknowledgements a checkpoint lacks, in words, for failure texts and explanations.

A barrier travels with the records, so an operator behind a late operator waits for the same barrier. The words name the
first late operators, and count the subtasks behind them.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from runtime.core.job.sentences import listed

MAX_NAMED_SUBTASKS: Final = 3  #: of an operator
MAX_NAMED_OPERATORS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingSubtasks:
    """Subtasks without an acknowledgement. `operators`: the first late operators.

    `subtasks`: the subtasks of these, as the middle of a sentence. `behind`: the number of the others, else "".
    """

    operators: tuple[str, ...]
    subtasks: str
    behind: str

    def __str__(self) -> str:
        return f"{self.subtasks}, and {self.behind}" if self.behind else self.subtasks


def missing_subtasks(
    missing: Iterable[tuple[str, int]], downstream: Mapping[str, Collection[str]], name_of: Callable[[str], str]
) -> MissingSubtasks:
    """The words for `missing`, pairs of uid and index with predecessors first. There is at least one.

    `downstream`: by operator, the targets of its regular edges.
    """
    late: dict[str, list[int]] = {}
    for uid, index in missing:
        late.setdefault(uid, []).append(index)
    behind = operators_behind(late, downstream)
    first = [uid for uid in late if uid not in behind] or list(late)
    texts = [_subtasks(late[uid], name_of(uid)) for uid in first]
    if len(texts) > MAX_NAMED_OPERATORS + 1:
        subtask_count = sum(len(late[uid]) for uid in first[MAX_NAMED_OPERATORS:])
        operator_count = len(first) - MAX_NAMED_OPERATORS
        texts = [*texts[:MAX_NAMED_OPERATORS], f"{subtask_count} subtasks of {operator_count} more operators"]
    first_count = sum(len(late[uid]) for uid in first)
    behind_count = sum(map(len, late.values())) - first_count
    noun = "1 subtask" if behind_count == 1 else f"{behind_count} subtasks"
    return MissingSubtasks(
        operators=tuple(first),
        subtasks=listed(texts),
        behind=f"{noun} behind {'it' if first_count == 1 else 'them'}" if behind_count else "",
    )


def operators_behind(uids: Iterable[str], downstream: Mapping[str, Collection[str]]) -> set[str]:
    """All operators downstream of `uids`."""
    operators: set[str] = set()
    edge = list(uids)
    while edge:
        for target in downstream.get(edge.pop(), ()):
            if target not in operators:
                operators.add(target)
                edge.append(target)
    return operators


def _subtasks(indexes: Sequence[int], name: str) -> str:
    """The subtasks of an operator: all by index, or the first and the number of the rest."""
    if len(indexes) == 1:
        return f"subtask {indexes[0]} of {name}"
    texts = [str(index) for index in indexes]
    if len(texts) > MAX_NAMED_SUBTASKS + 1:
        texts = [*texts[:MAX_NAMED_SUBTASKS], f"{len(texts) - MAX_NAMED_SUBTASKS} more"]
    return f"subtasks {listed(texts)} of {name}"
