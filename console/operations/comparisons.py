"""The comparison of two checkpoints of a job, read for page and API."""

from datetime import datetime
from typing import Final

from console.accounts.refusals import InvalidField, Refused
from console.checkpoints import storage
from console.checkpoints.comparison import Comparison, Side, compare
from console.checkpoints.models import Checkpoint
from console.checkpoints.selectors import job_checkpoints
from console.jobs.models import Job
from console.metrics.selectors import in_flight_bytes

FIELDS: Final = ("base", "other")


def load_comparison(job: Job, base: int, other: int, now: datetime) -> Comparison:
    """The comparison of the checkpoints with these numbers within the job. At most five queries.

    Raises:
        InvalidField: names the number that the job does not have, or `other` if both are equal.
    """
    if base == other:
        raise InvalidField("other", "must be another checkpoint than `base`")
    rows = job_checkpoints(job).defer(None).select_related("run", "run__version")
    found = {row.number: row for row in rows.filter(number__in=(base, other))}
    for field, number in zip(FIELDS, (base, other), strict=True):
        if number not in found:
            raise InvalidField(field, f"this job has no checkpoint {number}")
    graph = found[max(base, other)].run.version.graph or {}
    return compare(_side(found[base], now), _side(found[other], now), graph)


def _side(checkpoint: Checkpoint, now: datetime) -> Side:
    in_flight = in_flight_bytes(checkpoint.run, checkpoint.triggered_at, now)
    return Side(checkpoint, checkpoint.took_ms(now), _rows(checkpoint), in_flight)


def _rows(checkpoint: Checkpoint) -> dict[str, int] | None:
    """Rows of keyed and broadcast state by operator; None without readable files."""
    if not checkpoint.is_restorable:
        return None
    try:
        states = storage.recorded_states(checkpoint)
    except Refused:
        return None
    found: dict[str, int] = {}
    for state in states:
        found[state.operator] = found.get(state.operator, 0) + (state.rows if state.kind.has_rows else 0)
    return found
