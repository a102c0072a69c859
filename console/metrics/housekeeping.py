"""Housekeeping of the history: partitions ahead, roll-up, retention. A Celery task calls it each minute."""

from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from django.db import connection

from console.metrics import partitions, rollup

_LOCK: Final = 0x57454952_4D455452  #: key of the advisory lock: a pass at a time


def maintain(now: datetime | None = None) -> None:
    """Runs a pass, unless another pass is under way. `now` is the time by default."""
    at = now or datetime.now(UTC)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [_LOCK])
        (is_free,) = cursor.fetchone()
    if not is_free:
        return
    try:
        partitions.create_partitions(at)
        rollup.roll_up(at)
        coarser = pairwise(rollup.STEPS_S)
        partitions.drop_partitions(at, {finer: rollup.rolled_until(step_s) for finer, step_s in coarser})
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])
