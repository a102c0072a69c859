"""The last minutes of a run that the pages show, as times and figures without rows.

An operator becomes slow, a savepoint expires, a slot is lost, and the run restarts from its newest checkpoint. It reads
the records since then again, and reads faster until it is up to date. All attempts, checkpoints, operations and numbers
of the fixtures derive from this story, so that pages agree.

The share of the usual rate at which the slow operator processes records gives the rest. The records that it does not
process fill its input queues, and then wait in the source. A barrier waits for the records that are queued before it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from console.jobs.models import Run

LASTED = timedelta(hours=3, minutes=12)  #: age of a running run
INTERVAL = timedelta(seconds=5)  #: between two checkpoints
TIMEOUT = timedelta(minutes=1)  #: of a checkpoint
RATE = 84_211.4  #: records that the sources read per second
RECORD_BYTES = 90
STATE_BYTES = 1_256_016
OPEN_SESSIONS = 11_198
SESSION_GAP = timedelta(minutes=15)
SESSION_ACTIVE = timedelta(minutes=1)  #: mean time from the first to the last record of a session
SESSION = SESSION_ACTIVE + SESSION_GAP  #: mean time for which a session is open
SESSIONS_PER_S = OPEN_SESSIONS / SESSION.total_seconds()  #: that begin and that end, by event time
DEPLOYMENT = timedelta(seconds=4)  #: from the claim of a run until its records flow
FIRST_CHECKPOINT = timedelta(seconds=9)  #: from the claim of a run until the trigger of its first checkpoint
SURGE = 0.6  #: rate of the catch-up above the usual rate; the join, 61 % busy at the usual rate, is then 98 % busy
QUEUE = 421_000  #: records in the input queues of the slow operator when they are full
_SLOWED = 0.25  #: share of the usual rate that the slow operator processes
SLOWER = 0.132  #: share in the run that is slow now
_STILL_SLOWER = 0.07  #: share before the failure: a barrier behind full queues then needs longer than `TIMEOUT`
_RAMP = timedelta(seconds=110)  #: until the slow operator is 100 % busy and its queues are full
_FALL = timedelta(seconds=5)  #: until it is still slower
_FILL = timedelta(seconds=10)  #: until the queues are full in the catch-up
RESTART_DELAY = timedelta(seconds=2)  #: from the failure to the begin of the next attempt
_RESTART = timedelta(seconds=8)  #: from the failure to the first checkpoint of the next attempt
_UNDER_WAY = timedelta(milliseconds=45)  #: age of the checkpoint in progress; six subtasks took 39 ms
_SLOW = timedelta(seconds=188)  #: from the begin of the slowness to the failure
_STUCK = timedelta(seconds=62)  #: before the failure; since then no checkpoint completes
_STEP = timedelta(seconds=5)  #: of the sums of rates
_BEFORE = timedelta(seconds=70)  #: of the checkpoints before the operator became slow
_MILLISECOND = timedelta(milliseconds=1)


class Taken(NamedTuple):
    """A checkpoint. `took_ms` is None while it is in progress. `wait_ms`: of its barriers before the slow operator."""

    at: datetime
    took_ms: int | None
    reason: str = ""
    wait_ms: float = 0.0

    @property
    def status(self) -> str:
        if self.reason:
            return "failed"
        return "in_progress" if self.took_ms is None else "completed"


@dataclass(frozen=True)
class Story:
    """`failed_at`: None: no attempt has failed, and the operator is still slow. `slowed`: its share of the rate."""

    present: datetime
    slow_at: datetime
    failed_at: datetime | None
    slowed: float = _SLOWED

    @property
    def resumed_at(self) -> datetime | None:
        """The trigger of the first checkpoint of the second attempt."""
        return self.failed_at + _RESTART if self.failed_at else None

    @cached_property
    def restored_at(self) -> datetime | None:
        """The trigger of the checkpoint that the second attempt restored."""
        if self.failed_at is None:
            return None
        return max(each.at for each in self.checkpoints(self.failed_at) if each.status == "completed")

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
        if self.resumed_at is None or at < self.resumed_at:
            return False
        return self.up_to_date_at is not None and at < self.up_to_date_at

    @cached_property
    def _shares(self) -> tuple[tuple[float, float], ...]:
        """Seconds since `slow_at`, and the share of the usual rate then; straight lines between them."""
        points = [(0.0, 1.0), (_RAMP.total_seconds(), self.slowed)]
        if self.failed_at is not None:
            stuck = self.failed_at - _STUCK - self.slow_at
            points += [(stuck.total_seconds(), self.slowed), ((stuck + _FALL).total_seconds(), _STILL_SLOWER)]
        return tuple(points)

    def _sick_share(self, at: datetime) -> float:
        """The share of the usual rate that the operator processes, if no attempt fails."""
        seconds, shares = [second for second, _ in self._shares], [share for _, share in self._shares]
        return float(np.interp((at - self.slow_at).total_seconds(), seconds, shares))

    def share(self, at: datetime) -> float:
        """The share of the usual rate that the run reads while it is up."""
        if self.failed_at is not None and at >= self.failed_at:
            return 1 + SURGE * self.catches_up(at)
        return self._sick_share(at)

    def rate(self, at: datetime) -> float:
        age_s = (self.present - at).total_seconds()  # the report of the present has `RATE`
        wave = 1 - 0.03 * math.sin(age_s / 60) + 0.002 * math.sin(age_s)
        return RATE * wave * self.share(at)

    def behind(self, at: datetime) -> timedelta:
        """The usual time to read the records that wait. A restore adds those since its checkpoint."""
        if self.failed_at is None or self.restored_at is None or at < self.failed_at:
            return self._unread(at)
        read = max(timedelta(), at - self.failed_at - _RESTART) * (1 + SURGE)
        return max(timedelta(), self._unread(self.restored_at) + (at - self.restored_at) - read)

    def _unread(self, at: datetime) -> timedelta:
        """The usual time to read what the slow operator has left unread by `at`."""
        end_s = (at - self.slow_at).total_seconds()
        if end_s <= 0:
            return timedelta()
        bends = [second for second, _ in self._shares if second < end_s]
        shares = [self._sick_share(self.slow_at + timedelta(seconds=second)) for second in (*bends, end_s)]
        parts = zip(pairwise((*bends, end_s)), pairwise(shares), strict=True)
        return timedelta(seconds=sum((to - since) * (1 - (a + b) / 2) for (since, to), (a, b) in parts))

    def lag_ms(self, at: datetime) -> int:
        """How far the watermark is behind the clock, with the disorder that the source allows."""
        return round(870 + 90 * math.sin(at.timestamp() / 7) + self.behind(at) / _MILLISECOND)

    def queue_ms(self, at: datetime) -> int:
        """How far the watermark is behind the newest record that a source has read: backpressure slows it, too."""
        return round(40 + 1_000 * self.queued(at) / RATE)

    def queued(self, at: datetime) -> float:
        """Records in the input queues of the slow operator, beyond those of an operator that keeps up."""
        if self.resumed_at is not None and self.catches_up(at):
            waiting = self.behind(at).total_seconds() * RATE
            return min(QUEUE * min((at - self.resumed_at) / _FILL, 1.0), waiting)
        return QUEUE * self.sickness(at) ** 2

    def wait(self, at: datetime) -> timedelta:
        """How long a barrier that is sent at `at` waits for the records that are queued before it."""
        left = self.queued(at) / RATE
        if self.catches_up(at):
            return timedelta(seconds=left / (1 + SURGE))
        waited, step = timedelta(), timedelta(seconds=0.2)
        while left > 0:
            left -= (processed := self._sick_share(at + waited) * step.total_seconds())
            waited += step if left >= 0 else step * (1 + left / processed)
        return waited

    def event_time_s(self, began: datetime) -> float:
        """Seconds of event time whose records the newest attempt with records has read.

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

    def checkpoint(self, at: datetime) -> Taken:
        """The checkpoint that is triggered at `at`, if it completes."""
        number, wait_ms = round((at - self.slow_at) / INTERVAL), self.wait(at) / _MILLISECOND
        return Taken(at, round(250 + (number * 7919) % 190 + wait_ms), wait_ms=wait_ms)

    def checkpoints(self, until: datetime | None = None) -> Iterator[Taken]:
        """The checkpoints from a minute before the operator became slow, oldest first."""
        at = self.slow_at - _BEFORE
        while at <= (until or self.present):
            checkpoint = self.checkpoint(at)
            took, reason = (checkpoint.took_ms or 0) * _MILLISECOND, ""
            following = at + max(took, INTERVAL)
            if self.failed_at is not None and self.failed_at - _STUCK <= at < self.failed_at:
                took = min(TIMEOUT, self.failed_at - at)
                reason = "expired" if took == TIMEOUT else "suspended"
                following = at + TIMEOUT if took == TIMEOUT else self.failed_at + _RESTART
            yield checkpoint._replace(
                took_ms=took // _MILLISECOND if at + took <= self.present else None, reason=reason
            )
            at = following

    def last_number(self, began: datetime) -> int:
        """The number of the newest checkpoint, if a run that began at `began` has taken one in each interval."""
        checkpoints = list(self.checkpoints())
        return len(checkpoints) + (checkpoints[0].at - began - FIRST_CHECKPOINT) // INTERVAL


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
    return Story(run.live_at, failed_at - _SLOW, failed_at)


def story_of_slow_run(run: Run) -> Story:
    """The operator is slower than in the other stories, so a barrier waits longer for the same queues."""
    assert run.live_at is not None
    return Story(run.live_at, run.live_at - timedelta(minutes=6), None, SLOWER)
