"""The comparison of two checkpoints of a job, read for page and API."""

from datetime import datetime
from typing import Final

from console.accounts.refusals import InvalidField, Refused
from console.checkpoints.comparison import Comparison, Side, compare
from console.checkpoints.models import Checkpoint
from console.checkpoints.selectors import job_checkpoints
from console.checkpoints.timed_reads import recorded_states_in_time
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
    checkpoints = {row.number: row for row in rows.filter(number__in=(base, other))}
    for field, number in zip(FIELDS, (base, other), strict=True):
        if number not in checkpoints:
            raise InvalidField(field, f"this job has no checkpoint {number}")
    graph = checkpoints[max(base, other)].run.version.graph or {}
    return compare(_side(checkpoints[base], now), _side(checkpoints[other], now), graph)


def _side(checkpoint: Checkpoint, now: datetime) -> Side:
    in_flight = in_flight_bytes(checkpoint.run, checkpoint.triggered_at, now)
    took_ms = checkpoint.took_ms(now)
    if not checkpoint.is_restorable:
        return Side(checkpoint, took_ms, None, in_flight)
    try:
        return Side(checkpoint, took_ms, _rows(checkpoint), in_flight)
    except Refused as refused:
        return Side(checkpoint, took_ms, None, in_flight, refused.detail)


def _rows(checkpoint: Checkpoint) -> dict[str, int]:
    """Rows of keyed and broadcast state by operator.

    Raises:
        Refused: the files cannot be read, or the storage does not answer in time.
    """
    rows: dict[str, int] = {}
    for state in recorded_states_in_time(checkpoint):
        rows[state.operator] = rows.get(state.operator, 0) + (state.rows if state.kind.has_rows else 0)
    return rows
