"""Records that the sources of a run have read since a moment. All pages and REST count them here.

The numbers of an interval are stored seconds after its end. The newest seconds count at the rate of the newest
intervals, while records flow. A pause between two attempts counts for nothing.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

RATE_WINDOW: Final = timedelta(seconds=35)  #: the newest intervals, whose mean rate is that of the seconds after them
#: Of the newest interval. An interval ends every 5 s; a short pause of the history is no news yet.
MAX_AGE: Final = timedelta(seconds=20)


class Read(NamedTuple):
    """An interval, and the number of records that the sources read in it."""

    begin: datetime
    end: datetime
    records: float

    def records_after(self, moment: datetime) -> float:
        """The share of the records that lies after `moment`."""
        return self.records * max(0.0, min(1.0, (self.end - moment) / (self.end - self.begin)))


def with_earlier(reads: Sequence[Read], begin: datetime, ended_at: datetime | None) -> tuple[Read, ...]:
    """`reads` of the present attempt, with the time from `begin` to the first of them at their mean rate.

    `ended_at`: end of the attempt before, after which no record was read until the first of `reads`; None: there is
    none, or it is before `begin`.
    """
    first, last = reads[0].begin, reads[-1].end
    end = min(ended_at or first, first)
    if begin >= end:
        return tuple(reads)
    records = sum(read.records for read in reads) * ((end - begin) / (last - first))
    return (Read(begin, end, records), *reads)


def records_since(
    moment: datetime, reads: Sequence[Read], until: datetime | None, flowing_since: datetime | None = None
) -> int | None:
    """The records read since `moment`; `reads` are intervals, oldest first. None: there are none.

    `until`: the present while records flow; None: no record was read after the newest interval. `flowing_since`: begin
    of the flow in the present attempt; None: not known.
    """
    if not reads:
        return None
    counted, newest = sum(read.records_after(moment) for read in reads), reads[-1].end
    uncounted = max(newest, flowing_since or newest)
    if until is not None and until - uncounted < MAX_AGE:
        recent = [read for read in reads if read.end > newest - RATE_WINDOW]
        seconds = sum((read.end - read.begin).total_seconds() for read in recent)
        per_s = sum(read.records for read in recent) / seconds
        counted += per_s * max(0.0, (until - max(moment, uncounted)).total_seconds())
    return round(counted)
