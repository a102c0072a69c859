"""Findings of the rules, and the verdict that they add up to."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum

from console.health.facts import RunFacts
from runtime.core.job.lifecycle import RunState
from runtime.core.job.sentences import listed


class Level(IntEnum):
    """Health of a job, in the order in which a list needs it: the highest first."""

    NONE = 0  #: never started, or ended as requested
    OK = 1
    ATTENTION = 2
    FAILED = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A sickness of a run.

    Args:
        sentence: names the operator or process, with figures.
        operator: uid of the operator to blame, "" if there is none.
        waiting: uids of the operators that wait for `operator`, because of backpressure.
        checkpoint: primary key of the checkpoint that shows it.
        since: None: since the rule first found it.
        as_of: time of the samples that show it, if newer samples are overdue: it is the last known state.
        rule, remedy: filled from the table of rules; a rule may give its own remedy.
    """

    sentence: str
    level: Level = Level.ATTENTION
    operator: str = ""
    waiting: tuple[str, ...] = ()
    checkpoint: int | None = None
    since: datetime | None = None
    as_of: datetime | None = None
    remedy: str = ""
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table of rules.

    Args:
        states: states of a run in which the rule applies.
        find: the findings in the facts of a run, none if the run is well.
        remedy: where to look, or the first step to take; `{operator}` stands for the operator of the finding.
        is_sampled: the rule reads samples of the subtasks, which may be old.
    """

    name: str
    states: Collection[RunState]
    find: Callable[[RunFacts], Iterable[Finding]]
    remedy: str
    is_sampled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The health of a run. `findings` are the most severe first; `sentence` is that of the first, if there is one."""

    level: Level
    sentence: str = ""
    since: datetime | None = None
    findings: tuple[Finding, ...] = ()


def names(operators: Iterable[str], most: int = 3) -> str:
    """Operators in a sentence: `a`, `b`, `c` and 2 more. A rest of one is named."""
    labels = list(operators)
    if len(labels) > most + 1:
        return f"{', '.join(labels[:most])} and {len(labels) - most} more"
    return listed(labels)
