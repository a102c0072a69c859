"""The last minutes of a run that the pages show, as times and figures without rows.

An operator becomes slow, a savepoint expires, a slot is lost, and the run restarts from its newest checkpoint. It reads
the records since then again, and reads faster until it is up to date. All attempts, checkpoints, operations and numbers
of the fixtures derive from this story, so that pages agree.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple

from console.jobs.models import Run

LASTED = timedelta(hours=3, minutes=12)  #: age of a running run
INTERVAL = timedelta(seconds=5)  #: between two checkpoints
TIMEOUT = timedelta(minutes=1)  #: of a checkpoint
RATE = 84_211.4  #: records that the sources read per second
STATE_BYTES = 1_258_942
DEPLOYMENT = timedelta(seconds=4)  #: from the claim of a run until its records flow
FIRST_CHECKPOINT = timedelta(seconds=9)  #: from the claim of a run until the trigger of its first checkpoint
SURGE = 0.6  #: rate of the catch-up above the usual rate; the join, 61 % busy at the usual rate, is then 98 % busy
_SLOWED = 0.75  #: share of the usual rate that a slow operator leaves unread
_RAMP = timedelta(seconds=110)  #: until the slow operator is 100 % busy
_RESTART = timedelta(seconds=8)  #: from the failure to the first checkpoint of the next attempt
_UNDER_WAY = timedelta(milliseconds=45)  #: age of the checkpoint in progress; six subtasks took 39 ms
_SLOW = timedelta(seconds=193)  #: from the begin of the slowness to the failure
_STUCK = timedelta(seconds=62)  #: before the failure; since then no checkpoint completes
_STEP = timedelta(seconds=5)  #: of the sums of rates
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


@dataclass(frozen=True)
class Story:
    """`failed_at`: None: no attempt has failed, and the operator is still slow. `worst_ms`: its slowest checkpoint."""

    present: datetime
    slow_at: datetime
    failed_at: datetime | None
    worst_ms: int

    @property
    def resumed_at(self) -> datetime | None:
        """The trigger of the first checkpoint of the second attempt."""
        return self.failed_at + _RESTART if self.failed_at else None

    @cached_property
    def restored_at(self) -> datetime | None:
        """The trigger of the checkpoint that the second attempt restored."""
        done = (each.at for each in self.checkpoints() if each.status == "completed")
        return max(at for at in done if at < self.failed_at) if self.failed_at else None

    @cached_property
    def up_to_date_at(self) -> datetime | None:
        """The end of the catch-up."""
        return self.resumed_at + self.behind(self.resumed_at) / SURGE if self.resumed_at else None

    def is_down(self, at: datetime) -> bool:
        return self.failed_at is not None and self.failed_at <= at < self.failed_at + _RESTART

    def sickness(self, at: datetime) -> float:
        """0: the operator keeps up; 1: it is 100 % busy."""
        if at < self.slow_at or (self.failed_at is not None and at >= self.failed_at):
            return 0.0
        return min((at - self.slow_at) / _RAMP, 1.0)

    def catches_up(self, at: datetime) -> bool:
        if self.resumed_at is None or self.up_to_date_at is None:
            return False
        return self.resumed_at <= at < self.up_to_date_at

    def rate(self, at: datetime) -> float:
        age_s = (self.present - at).total_seconds()  # the report of the present has `RATE`
        wave = 1 - 0.03 * math.sin(age_s / 60) + 0.002 * math.sin(age_s)
        return RATE * wave * (1 - _SLOWED * self.sickness(at)) * (1 + SURGE * self.catches_up(at))

    def behind(self, at: datetime) -> timedelta:
        """The usual time to read the records that wait. A restore adds those since its checkpoint."""
        if self.failed_at is None or self.restored_at is None or at < self.failed_at:
            slow = max(timedelta(), at - self.slow_at)
            ramp = min(slow, _RAMP)
            return _SLOWED * (ramp * (ramp / _RAMP) / 2 + slow - ramp)
        read = max(timedelta(), at - self.failed_at - _RESTART) * (1 + SURGE)
        return max(timedelta(), self.behind(self.restored_at) + (at - self.restored_at) - read)

    def lag_ms(self, at: datetime) -> int:
        """How far the watermark is behind the newest record."""
        return round(870 + 90 * math.sin(at.timestamp() / 7) + self.behind(at) / _MILLISECOND)

    def read_s(self, began: datetime) -> float:
        """Time that the usual rate needs for the records that the newest attempt with records has read.

        `began`: when the first attempt began.
        """
        at, end = began + DEPLOYMENT, self.present
        if self.failed_at is not None and self.resumed_at is not None:
            at, end = (self.resumed_at, end) if self.resumed_at < end else (at, self.failed_at)
        total = 0.0
        while at < end:
            step = min(_STEP, end - at)
            total += self.rate(at) / RATE * step.total_seconds()
            at += step
        return total

    def state_bytes(self, at: datetime) -> int:
        return round(STATE_BYTES * (0.985 + 0.015 * math.sin(at.timestamp() / 90)))

    def checkpoint_ms(self, at: datetime) -> int:
        number = round((at - self.slow_at) / INTERVAL)
        return round(250 + (number * 7919) % 190 + self.sickness(at) ** 2 * self.worst_ms)

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
    return _story(run, timedelta(seconds=6 if run.state == "restarting" else 333))


def story_of_recovered_run(run: Run) -> Story:
    """The run has been up to date for minutes."""
    return _story(run, timedelta(seconds=398))


def _story(run: Run, since_failure: timedelta) -> Story:
    """A checkpoint is in progress at the present if `since_failure` is a number of intervals after the restart."""
    assert run.live_at is not None
    failed_at = run.live_at - since_failure - _UNDER_WAY
    return Story(run.live_at, failed_at - _SLOW, failed_at, 20_000)


def story_of_slow_run(run: Run) -> Story:
    assert run.live_at is not None
    return Story(run.live_at, run.live_at - timedelta(minutes=6), None, 38_000)
