"""The last minutes of a run that the pages show, as times and figures without rows.

An operator becomes slow, a savepoint expires, a slot is lost, and the run restarts from its newest checkpoint. All
attempts, checkpoints, operations and numbers of the fixtures derive from this story, so that pages agree.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from console.jobs.models import Run

LASTED = timedelta(hours=3, minutes=12)  #: age of a running run
INTERVAL = timedelta(seconds=5)  #: between two checkpoints
TIMEOUT = timedelta(minutes=1)  #: of a checkpoint
RATE = 84_211.4  #: records that the sources read per second
STATE_BYTES = 1_258_942
DEPLOYMENT = timedelta(seconds=4)  #: from the claim of a run until its records flow
FIRST_CHECKPOINT = timedelta(seconds=9)  #: from the claim of a run until the trigger of its first checkpoint
_RAMP = timedelta(seconds=110)  #: until the slow operator is 100 % busy
_RESTART = timedelta(seconds=8)  #: from the failure to the first checkpoint of the next attempt
_UNDER_WAY = timedelta(milliseconds=45)  #: age of the checkpoint in progress; six subtasks took 39 ms
_STUCK = timedelta(seconds=62)  #: before the failure; since then no checkpoint completes
_BEFORE = timedelta(seconds=70)  #: of the checkpoints before the operator became slow
_MILLISECOND = timedelta(milliseconds=1)


class Taken(NamedTuple):
    """A checkpoint. `took_ms` is None while it is in progress."""

    at: datetime
    took_ms: int | None
    reason: str

    @property
    def status(self) -> str:
        if self.reason:
            return "failed"
        return "in_progress" if self.took_ms is None else "completed"


@dataclass(frozen=True, slots=True)
class Story:
    """`failed_at`: None: no attempt has failed, and the operator is still slow. `worst_ms`: its slowest checkpoint.

    The restarted run reads up to `surge` faster, and is up to date again after `catches_up`.
    """

    present: datetime
    slow_at: datetime
    failed_at: datetime | None
    worst_ms: int
    surge: float = 0.3
    catches_up: timedelta = timedelta(seconds=60)

    @property
    def resumed_at(self) -> datetime | None:
        """The trigger of the first checkpoint of the second attempt."""
        return self.failed_at + _RESTART if self.failed_at else None

    def is_down(self, at: datetime) -> bool:
        return self.failed_at is not None and self.failed_at <= at < self.failed_at + _RESTART

    def sickness(self, at: datetime) -> float:
        """0: the operator keeps up; 1: it is 100 % busy."""
        if at < self.slow_at or (self.failed_at is not None and at >= self.failed_at):
            return 0.0
        return min((at - self.slow_at) / _RAMP, 1.0)

    def catch_up(self, at: datetime) -> float:
        """1 at the restart, 0 once the run is up to date again."""
        if self.resumed_at is None or at < self.resumed_at:
            return 0.0
        return max(0.0, 1 - (at - self.resumed_at) / self.catches_up)

    def rate(self, at: datetime) -> float:
        age_s = (self.present - at).total_seconds()  # the report of the present has `RATE`
        wave = 1 - 0.03 * math.sin(age_s / 60) + 0.002 * math.sin(age_s)
        return RATE * wave * (1 - 0.75 * self.sickness(at)) * (1 + self.surge * self.catch_up(at))

    def lag_ms(self, at: datetime) -> int:
        """How far the watermark is behind the newest record."""
        slow_until = min(at, self.failed_at) if self.failed_at else at
        lost = max(timedelta(), slow_until - self.slow_at) * 0.6
        is_past = self.failed_at is not None and at >= self.failed_at
        behind = lost * self.catch_up(at) ** 2 if is_past else lost  # the surge decays
        return round(870 + 90 * math.sin(at.timestamp() / 7) + behind / _MILLISECOND)

    def state_bytes(self, at: datetime) -> int:
        return round(STATE_BYTES * (0.985 + 0.015 * math.sin(at.timestamp() / 90)))

    def checkpoint_ms(self, at: datetime) -> int:
        number = round((at - self.slow_at) / INTERVAL)
        return round(250 + (number * 7919) % 190 + self.sickness(at) * self.worst_ms)

    def checkpoints(self) -> Iterator[Taken]:
        """The checkpoints from a minute before the operator became slow, oldest first."""
        at = self.slow_at - _BEFORE
        while at <= self.present:
            took = self.checkpoint_ms(at) * _MILLISECOND
            following, reason = at + max(took, INTERVAL), ""
            if self.failed_at is not None and self.failed_at - _STUCK <= at < self.failed_at:
                took = min(TIMEOUT, self.failed_at - at)
                reason = "expired" if took == TIMEOUT else "suspended"
                following = at + TIMEOUT if took == TIMEOUT else self.failed_at + _RESTART
            yield Taken(at, round(took / _MILLISECOND) if at + took <= self.present else None, reason)
            at = following

    def last_number(self, began: datetime) -> int:
        """The number of the newest checkpoint, if a run that began at `began` has taken one in each interval."""
        taken = list(self.checkpoints())
        return len(taken) + (taken[0].at - began - FIRST_CHECKPOINT) // INTERVAL


def story_of(run: Run) -> Story:
    """The story up to the end of `run`, or up to the present; a run that is restarting has failed six seconds ago."""
    present = run.live_at
    assert present is not None
    end = present + timedelta(seconds=122) if run.state == "restarting" else present
    return Story(present, end - timedelta(seconds=300), end - timedelta(seconds=128) - _UNDER_WAY, 4_200)


def story_of_recovered_run(run: Run) -> Story:
    """The surplus of the catch-up, 0.64 at first and 0 after 356 s, is the lag of 115 s at the failure."""
    assert run.live_at is not None
    slow_at, failed_at = (run.live_at - _UNDER_WAY - timedelta(seconds=s) for s in (590, 398))
    return Story(run.live_at, slow_at, failed_at, 4_200, surge=0.64, catches_up=timedelta(seconds=356))


def story_of_slow_run(run: Run) -> Story:
    assert run.live_at is not None
    return Story(run.live_at, run.live_at - timedelta(minutes=6), None, 38_000)
