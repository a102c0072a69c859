"""The filters of the list of jobs."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from console.health.findings import Level
from console.health.verdicts import with_health_level
from console.pages.selectors import find_jobs, with_run_states
from console.runs.selectors import FoundJobs
from console.ui.lists.job_list import states_of
from console.ui.paging import text

#: Levels that the list is filtered by, the most urgent first.
HEALTH_LEVELS: Final = (Level.FAILED, Level.ATTENTION, Level.OK)


@dataclass(frozen=True, slots=True)
class JobFilters:
    """The chosen filters; "" leaves one out. `state`: a group of states. `health`: the word of a level."""

    q: str = ""
    state: str = ""
    health: str = ""
    tag: str = ""
    owner: str = ""
    archived: bool = False

    @classmethod
    def of(cls, query: Mapping[str, Any]) -> "JobFilters":
        texts = {name: text(query.get(name)) for name in ("q", "state", "health", "tag", "owner")}
        return cls(**texts, archived=query.get("archived") == "1")

    @property
    def kept(self) -> dict[str, str]:
        """The filters beside the text and the state, by name."""
        return {name: value for name in ("health", "tag", "owner") if (value := getattr(self, name))}

    @property
    def is_empty(self) -> bool:
        return self == JobFilters()

    def found(self, now: datetime) -> FoundJobs:
        """The jobs before the choice of a state and a level, which the tallies count."""
        return with_health_level(find_jobs(self.q, tag=self.tag, owner=self.owner, archived=self.archived), now)

    def chosen(self, jobs: FoundJobs) -> FoundJobs:
        if self.state:
            jobs = with_run_states(jobs, states_of(self.state))
        if self.health:
            jobs = jobs.filter(shown_level__in=[level for level in HEALTH_LEVELS if level.word == self.health])
        return jobs


def health_tally(counts: Mapping[int, int]) -> list[tuple[str, int]]:
    """(word of the level, number) of levels that jobs have. `counts`: by level."""
    return [(level.word, counts[level]) for level in HEALTH_LEVELS if counts.get(level)]


def sum_by(counts: Mapping[tuple[Any, ...], int], place: int) -> dict[Any, int]:
    """Numbers by the value at `place` of the keys of `counts`."""
    summed: Counter[Any] = Counter()
    for key, number in counts.items():
        summed[key[place]] += number
    return dict(summed)
