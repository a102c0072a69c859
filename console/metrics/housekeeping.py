"""Housekeeping of the history: partitions ahead, roll-up, retention. A Celery task calls it each minute."""

from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from console.advisory_lock import try_lock
from console.metrics import partitions, rollup

_LOCK: Final = 0x57454952_4D455452  #: key of the advisory lock: a pass at a time


def maintain(now: datetime | None = None) -> bool:
    """Runs a pass. False: another pass is under way. `now` is the time by default."""
    at = now or datetime.now(UTC)
    with try_lock(_LOCK) as is_free:
        if is_free:
            partitions.create_partitions(at)
            rollup.roll_up(at)
            coarser = pairwise(rollup.STEPS_S)
            partitions.drop_partitions(at, {finer: rollup.rolled_until(step_s) for finer, step_s in coarser})
    return is_free
