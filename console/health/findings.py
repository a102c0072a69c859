"""Findings of the rules, and the verdict that they add up to."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum

from console.health.ages import Age
from console.health.facts import RunFacts
from console.health.words import UNKNOWN, state_word
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
        sentence: names the operator or process, with figures. A rule marks the ages in it.
        ages: their places in the sentence, filled from the marks.
        operator: uid of the operator to blame, "" if there is none.
        waiting: uids of the operators that wait for `operator`, because of backpressure.
        checkpoint: primary key of the checkpoint that shows it.
        since: None: since the rule first found it.
        as_of: time of the samples that show it, if newer samples are overdue: it is the last known state.
        rule, remedy, act: filled from the table of rules; a rule may give its own remedy and act. `act`: the operation
            that helps, "" if none does.
        repeats: another finding names the same operator; pages do not show this finding beside it.
    """

    sentence: str
    level: Level = Level.ATTENTION
    operator: str = ""
    waiting: tuple[str, ...] = ()
    checkpoint: int | None = None
    since: datetime | None = None
    as_of: datetime | None = None
    remedy: str = ""
    act: str | None = None
    repeats: bool = False
    rule: str = ""
    ages: tuple[Age, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of the table of rules.

    Args:
        states: states of a run in which the rule applies.
        find: the findings in the facts of a run, none if the run is well.
        remedy: where to look, or the first step to take; `{operator}` stands for the operator of the finding.
        is_sampled: the rule reads samples of the subtasks, which may be old.
        act: the operation that helps, "" if none does.
    """

    name: str
    states: Collection[RunState]
    find: Callable[[RunFacts], Iterable[Finding]]
    remedy: str
    is_sampled: bool = False
    act: str = ""


@dataclass(frozen=True, slots=True)
class SilentInput:
    """A source that sends no records now. `name`: as in sentences."""

    operator: str
    name: str
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The health of a run in the state that it judges: list, pages, REST, command line and metrics show the same.

    Args:
        state: the state of the run; "": the job never ran.
        sentence: that of the first finding, if there is one.
        findings: the most severe first.
        silent_inputs: sources that send no records now.
        checked_at: when it was made; None: no pass has checked the run in this state yet.
        is_old: no pass has checked the run for long, so this is the last known verdict.
        is_known: False: nothing has checked a run under way for long, and what it last was, was well.
    """

    level: Level
    state: str = ""
    sentence: str = ""
    since: datetime | None = None
    findings: tuple[Finding, ...] = ()
    silent_inputs: tuple[SilentInput, ...] = ()
    checked_at: datetime | None = None
    is_old: bool = False
    is_known: bool = True

    @property
    def health(self) -> str:
        return self.level.word if self.is_known else UNKNOWN

    @property
    def word(self) -> str:
        return state_word(self.state, self.health)

    @property
    def cause(self) -> Finding | None:
        """The finding that gives the sentence; None if the run is well."""
        return self.findings[0] if self.findings else None

    @property
    def last_known(self) -> Finding | None:
        """The most severe finding of samples that are old; pages have it beside the age of the samples."""
        return next((finding for finding in self.findings[1:] if finding.as_of), None)

    @property
    def others(self) -> tuple[Finding, ...]:
        """The findings beside the cause and `last_known`."""
        return tuple(each for each in self.findings[1:] if each is not self.last_known and not each.repeats)


def names(operators: Iterable[str], most: int = 3) -> str:
    """Operators in a sentence: `a`, `b`, `c` and 2 more. A rest of one is named."""
    labels = list(operators)
    if len(labels) > most + 1:
        return f"{', '.join(labels[:most])} and {len(labels) - most} more"
    return listed(labels)
