"""The expected time of an operation, by the history of its job. All pages, sentences and REST read it here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from statistics import median
from typing import Final

from console import formats
from console.checkpoints.models import Checkpoint
from console.checkpoints.restart_times import restarts_ms
from console.jobs.models import Job
from console.operations.models import Operation, OperationKind, OperationState

_K = OperationKind
_HISTORY: Final = 20  #: newest operations
_MILLISECOND: Final = timedelta(milliseconds=1)
#: Kinds of operations that stand for a kind, those before others: a start and a restore wait for the same steps.
_SIMILAR: Final[Mapping[str, tuple[str, ...]]] = {_K.RESTORE: (_K.RESTORE, _K.START), _K.START: (_K.START, _K.RESTORE)}
_WITH_SAVEPOINT: Final = (_K.SAVEPOINT, _K.STOP, _K.DRAIN)


@dataclass(frozen=True, slots=True)
class ExpectedDuration:
    """Durations of the last `count` operations or restarts; 0: of none of them. `note`: the origin, in words."""

    median_ms: float
    shortest_ms: float
    longest_ms: float
    count: int
    note: str


def expected_duration(job_id: int, kind: str, newest: Checkpoint | None = None) -> ExpectedDuration | None:
    """The durations of the job's last successful operations of `kind`, from request to end. At most two queries.

    Without any, a restore takes as long as a start or as a restart after a failure, and a savepoint as long as the
    checkpoint `newest`. None: nothing is known.
    """
    similar = _SIMILAR.get(kind, (kind,))
    took_ms = _operations_ms(job_id, similar)
    if known := next((each for each in similar if each in took_ms), None):
        return _spread(took_ms[known], known)
    if kind in _WITH_SAVEPOINT and newest is not None and newest.duration_ms is not None:
        lasted = float(newest.duration_ms)
        return ExpectedDuration(lasted, lasted, lasted, 0, f"as {newest}: the job has no earlier {kind}")
    if kind in _SIMILAR and (restarts := _restarts_ms(job_id)):
        return _spread(restarts, "restart")
    return None


def _restarts_ms(job_id: int) -> Sequence[float]:
    return Job.objects.filter(pk=job_id).values_list(restarts_ms(job_id), flat=True).get() or ()


def _operations_ms(job_id: int, kinds: Sequence[str]) -> Mapping[str, Sequence[float]]:
    earlier = Operation.objects.filter(
        job=job_id, kind__in=kinds, state=OperationState.SUCCEEDED, ended_at__isnull=False
    )
    found: dict[str, list[float]] = {}
    for kind, created, ended in earlier.order_by("-created_at").values_list("kind", "created_at", "ended_at")[
        :_HISTORY
    ]:
        if ended is not None:
            found.setdefault(kind, []).append((ended - created) / _MILLISECOND)
    return found


def _spread(took_ms: Sequence[float], noun: str) -> ExpectedDuration:
    shortest, longest, count = min(took_ms), max(took_ms), len(took_ms)
    if count == 1:
        note = f"as the last {noun} of this job"
    else:
        spread = f"{formats.duration(shortest)} to {formats.duration(longest)}"
        plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
        note = f"the last {count} {plural} of this job took {spread}"
    return ExpectedDuration(median(took_ms), shortest, longest, count, note)
