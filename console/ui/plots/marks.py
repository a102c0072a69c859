"""Events of a job on the time axis: restarts, failures, savepoints, new versions and operations. A single query."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.db import connection
from django.urls import reverse

from console.jobs.models import Job
from console.operations.models import JOB_OPERATIONS, OperationKind
from console.ui.plots.window import Window

MAX_MARKS: Final = 60  #: newest events of a kind that are drawn
#: Operations that change the run; savepoints have marks of their own.
_OPERATIONS: Final = [kind.value for kind in JOB_OPERATIONS if kind is not OperationKind.SAVEPOINT]
#: Kind, time, reference and words of each event. Django would take longer to compile the query than Postgres to run it.
_EVENTS: Final = """
(SELECT 'operation', created_at AS at, id::text, kind || ', ' || state FROM weir_operation
    WHERE job_id = %(job)s AND kind = ANY(%(operations)s) AND created_at BETWEEN %(begin)s AND %(end)s
    ORDER BY at DESC LIMIT %(most)s)
UNION ALL (SELECT 'version', created_at AS at, number::text, '' FROM weir_job_version
    WHERE job_id = %(job)s AND created_at BETWEEN %(begin)s AND %(end)s ORDER BY at DESC LIMIT %(most)s)
UNION ALL (SELECT 'savepoint', triggered_at AS at, id::text, number || ' ' || status FROM weir_checkpoint
    WHERE job_id = %(job)s AND kind <> 'checkpoint' AND triggered_at BETWEEN %(begin)s AND %(end)s
    ORDER BY at DESC LIMIT %(most)s)
UNION ALL (SELECT 'restart', a.started_at AS at, a.run_id::text, earlier.reason
    FROM weir_attempt a JOIN weir_run r ON r.id = a.run_id CROSS JOIN LATERAL (
        SELECT reason FROM weir_attempt WHERE run_id = a.run_id AND token < a.token ORDER BY token DESC LIMIT 1
    ) AS earlier
    WHERE r.job_id = %(job)s AND a.started_at BETWEEN %(begin)s AND %(end)s ORDER BY at DESC LIMIT %(most)s)
UNION ALL (SELECT 'failure', ended_at AS at, id::text, coalesce(failure ->> 'message', '') FROM weir_run
    WHERE job_id = %(job)s AND state = 'failed' AND ended_at BETWEEN %(begin)s AND %(end)s
    ORDER BY at DESC LIMIT %(most)s)
"""


@dataclass(frozen=True, slots=True)
class Mark:
    """An event. `at` is a percentage of the axis, `has_rule`: it is drawn through all plots."""

    kind: str
    at: float
    time: datetime
    about: str
    href: str

    @property
    def has_rule(self) -> bool:
        return self.kind in ("restart", "failure")


@dataclass(frozen=True, slots=True)
class _Kind:
    """Text and address of a kind of event, from the reference and the words of a row."""

    about: Callable[[str, str], str]
    href: Callable[[str, str], str]


_KINDS: Final[Mapping[str, _Kind]] = {
    "operation": _Kind(lambda _, words: words.capitalize(), lambda ref, _: reverse("ui:operation", args=[ref])),
    "version": _Kind(lambda ref, _: f"Version {ref} created", lambda *_: "#version-head"),
    "savepoint": _Kind(
        lambda _, words: f"Savepoint {words.replace('_', ' ')}", lambda ref, _: reverse("ui:checkpoint", args=[ref])
    ),
    "restart": _Kind(
        lambda ref, words: f"Run {ref} restarted" + (f": {words}" if words else ""),
        lambda ref, _: reverse("ui:run", args=[ref]),
    ),
    "failure": _Kind(
        lambda ref, words: f"Run {ref} failed" + (f": {words}" if words else ""),
        lambda ref, _: reverse("ui:run", args=[ref]),
    ),
}


def marks(job: Job, window: Window) -> tuple[Mark, ...]:
    """The events of `job` in `window`, oldest first."""
    values: dict[str, Any] = {
        "job": job.pk, "begin": window.begin, "end": window.end, "operations": _OPERATIONS, "most": MAX_MARKS
    }  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute(_EVENTS, values)
        found = sorted(cursor.fetchall(), key=lambda row: (row[1], row[0]))
    return tuple(
        Mark(name, window.percent(at), at, _KINDS[name].about(ref, words), _KINDS[name].href(ref, words))
        for name, at, ref, words in found
    )
