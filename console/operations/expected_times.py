"""The expected time of an operation, by the history of its job. All pages, sentences and REST read it here."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import F, OuterRef, Q
from django.db.models.functions import Extract, JSONObject

from console import formats
from console.checkpoints.models import Checkpoint
from console.checkpoints.restart_times import restarts_ms
from console.jobs.models import Job
from console.operations.models import Operation, OperationState
from console.operations.registry import operation_type, operation_types
from runtime.core.snapshot.failure_reason import FailureReason

_HISTORY: Final = 20  #: newest operations
_RESTART: Final = "restart"  #: after a failure; it restores state, as a restore does
_IN_APPLICATION: Final = "; a new Spark application takes longer"


@dataclass(frozen=True, slots=True)
class ExpectedDuration:
    """Durations of the last `count` operations or restarts; 0: of none of them. `note`: the origin, in words.

    `is_least`: a part of the operation took these times, so the whole takes longer than the shortest.
    """

    median_ms: float
    shortest_ms: float
    longest_ms: float
    count: int
    note: str
    is_least: bool = False

    @property
    def shown_ms(self) -> float:
        """The median, or the least time if a part stands for the whole."""
        return self.shortest_ms if self.is_least else self.median_ms

    def __str__(self) -> str:
        return f"{'at least ' if self.is_least else ''}{formats.duration(self.shown_ms)}"


def expected_duration(job_id: int, kind: str, newest: Checkpoint | None = None) -> ExpectedDuration | None:
    """The durations of the job's last successful operations of `kind`, from request to end. A single query.

    Without any, similar kinds stand for it. A start and a restore take longer than a restart, which mostly keeps its
    Spark application. A stop and a drain take at least as long as a savepoint, and a savepoint
    at least as long as the checkpoint `newest`, which shares files with earlier ones. None: nothing is known.
    """
    return expected_durations(job_id, (kind,), newest)[0]


def expected_durations(
    job_id: int, kinds: Sequence[str], newest: Checkpoint | None = None
) -> tuple[ExpectedDuration | None, ...]:
    """As `expected_duration`, for each of `kinds`. A single query."""
    columns: tuple[Any, ...] = (*map(_newest_operations, kinds), restarts_ms(job_id))
    *operations, restarts = Job.objects.filter(pk=job_id).values_list(*columns).get()
    return tuple(_estimate(kind, rows, restarts or (), newest) for kind, rows in zip(kinds, operations, strict=True))


def expected_savepoints(newest: Mapping[int, Checkpoint | None], kind: str) -> dict[int, ExpectedDuration | None]:
    """As `expected_duration` for several jobs, of a `kind` that takes a savepoint. `newest`: by job. A single query."""
    rows = Job.objects.filter(pk__in=newest).values_list("pk", _newest_operations(kind))
    return {pk: _estimate(kind, operations, (), newest[pk]) for pk, operations in rows}


def _newest_operations(kind: str) -> ArraySubquery:
    """The newest operations that show how long `kind` takes: successful ones, and those whose savepoint expired."""
    succeeded = Q(state=OperationState.SUCCEEDED)
    of_savepoints = [each.kind for each in operation_types() if each.takes_savepoint]
    expired = Q(state=OperationState.FAILED, kind__in=of_savepoints, error__code=FailureReason.EXPIRED)
    similar = _similar(kind)
    earlier = Operation.objects.filter(succeeded | expired, job=OuterRef("pk"), kind__in=similar)
    ended = earlier.filter(ended_at__isnull=False).order_by("-created_at")
    took_s = Extract(F("ended_at") - F("created_at"), "epoch")
    newest = ended.values_list(JSONObject(kind="kind", state="state", took_s=took_s))
    return ArraySubquery(newest[:_HISTORY])


def _estimate(
    kind: str, operations: Sequence[Mapping[str, Any]], restarts: Sequence[float], newest: Checkpoint | None
) -> ExpectedDuration | None:
    """The expected time of `kind` by the `operations`, by `restarts`, whose times are in ms, or by `newest`."""
    similar, of_savepoint = _similar(kind), operation_type(kind).takes_savepoint
    took_ms = defaultdict[str, list[float]](list, {_RESTART: list(restarts)})
    expired_ms = defaultdict[str, list[float]](list)
    for each in operations:
        of_state = took_ms if each["state"] == OperationState.SUCCEEDED else expired_ms
        of_state[each["kind"]].append(each["took_s"] * 1000)
    for name in similar:
        if durations := took_ms[name]:
            is_restart = name == _RESTART
            is_least = is_restart or (of_savepoint and name != kind)
            note = _note(durations, name) + (_IN_APPLICATION if is_restart else "")
            note += _expired_note(expired_ms[name], len(durations))
            return ExpectedDuration(median(durations), min(durations), max(durations), len(durations), note, is_least)
    if of_savepoint and newest is not None and newest.duration_ms is not None:
        lasted = float(newest.duration_ms)
        note = f"as {newest}: the job has no earlier {kind}"
        note += _expired_note([ms for name in similar for ms in expired_ms[name]], 0)
        return ExpectedDuration(lasted, lasted, lasted, 0, note, is_least=True)
    return None


def _expired_note(expired_ms: Sequence[float], succeeded: int) -> str:
    """A clause on the operations that expired, beside `succeeded` ones."""
    if not expired_ms:
        return ""
    of = f" of the last {len(expired_ms) + succeeded}" if succeeded else ""
    return f"; {len(expired_ms)}{of} expired after {formats.duration(max(expired_ms))}"


def _note(took_ms: Sequence[float], noun: str) -> str:
    if len(took_ms) == 1:
        return f"as the last {noun} of this job"
    spread = f"{formats.duration(min(took_ms))} to {formats.duration(max(took_ms))}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"the last {len(took_ms)} {plural} of this job took {spread}"


def _similar(kind: str) -> tuple[str, ...]:
    """Kinds that stand for a kind, in order of preference. A start and a restore wait for the same steps."""
    return operation_type(kind).similar or (kind,)
