"""Paths of every page of the console, in every state that looks different."""

from datetime import timedelta
from typing import Any

from django.utils import timezone

from console.accounts.models import ApiToken, User
from console.alerts.models import Channel
from console.checkpoints.models import Checkpoint, StateQuery
from console.health.findings import Finding
from console.health.verdicts import encode
from console.incidents.models import Incident, NoteKind
from console.jobs.models import Package, Run
from console.operations.models import BulkOperation, Operation
from tests.console.ui import numbers, rows
from tests.console.ui.story import LASTED

TRACEBACK = """Traceback (most recent call last):
  File "/srv/jobs/delays.py", line 41, in mean_delay
    return total / flights
           ~~~~~~^~~~~~~~~
ZeroDivisionError: division by zero"""
FAILURE = {"code": "final", "message": "division by zero", "operator": "window", "slot": 1,
           "traceback": TRACEBACK}  # fmt: skip
OTHER_STATES = ("finished", "failed", "restarting")
#: When runs began, and when they ended. Without them, more runs than a worker has places would be active at a time.
TIMES = {
    "finished": {"began_ago": LASTED + timedelta(minutes=8), "ended_ago": timedelta(minutes=40)},
    "failed": {"began_ago": LASTED + timedelta(minutes=4), "ended_ago": timedelta(minutes=27)},
    "restarting": {"began_ago": timedelta(minutes=25)},
}


def pages_of_running_job(run: Run) -> dict[str, str]:
    """Path by name of the picture."""
    job, checkpoints = f"/jobs/{run.job_id}", Checkpoint.objects.filter(job=run.job)
    checkpoint = checkpoints.filter(status="completed", kind="checkpoint").latest("number")
    savepoint = checkpoints.filter(status="completed", kind="savepoint").latest("number")
    operation = Operation.objects.latest("created_at")
    failed = Checkpoint.objects.get(job=run.job, reason="expired")
    slow = Checkpoint.objects.filter(job=run.job, status="completed").latest("duration_ms")
    return {
        "now": "/",
        "incidents": "/incidents/",
        "incident": f"/incidents/{_incident(run, operation).pk}/",
        "jobs": "/jobs/",
        "bulk": f"/jobs/bulk/?kind=stop&job={run.job_id}",
        "bulk-result": f"/jobs/bulk/{_bulk(run, operation).pk}/",
        "job": f"{job}/",
        "job-node": f"{job}/?node=window&span=6h",
        "dead-letters": f"{job}/dead-letters/",
        "versions": f"{job}/versions/",
        "version-yaml": f"{job}/versions/yaml/",
        "edit": f"{job}/edit/",
        "run": f"/runs/{run.pk}/",
        "subtasks": f"/runs/{run.pk}/subtasks/?operator=window",
        "checkpoint": f"/checkpoints/{checkpoint.pk}/",
        "checkpoint-failed": f"/checkpoints/{failed.pk}/",
        "checkpoint-running": f"/checkpoints/{checkpoints.get(status='in_progress').pk}/",
        "clone": f"/checkpoints/{checkpoint.pk}/clone/",
        "discard": f"/checkpoints/{savepoint.pk}/discard/",
        "state": f"/checkpoints/{checkpoint.pk}/state/?operator=window&state=state",
        "state-query": f"/state-queries/{StateQuery.objects.get(state='succeeded').pk}/",
        "state-query-running": f"/state-queries/{StateQuery.objects.get(state='running').pk}/",
        "checkpoints": f"{job}/checkpoints/?slower_than=1s",
        "compare": f"{job}/checkpoints/compare/?base={slow.number}&other={checkpoint.number}",
        "retention": f"{job}/checkpoints/retention/?keep=3",
        "orphans": f"{job}/checkpoints/orphans/",
        "trend": f"{job}/checkpoints/trend/?days=7",
        "schedule": f"{job}/checkpoints/schedule/",
        "checkpoint-statistics": f"{job}/checkpoints/statistics/",
        "start": f"{job}/start/",
        "savepoint": f"{job}/savepoint/",
        "stop": f"{job}/stop/",
        "drain": f"{job}/drain/",
        "cancel": f"{job}/cancel/",
        "rescale": f"{job}/rescale/",
        "restore": f"{job}/restore/?checkpoint={checkpoints.get(number=checkpoint.number - 3).pk}",
        "evidence": f"/checkpoints/{checkpoint.pk}/evidence/",
        "reviews": "/reviews/",
        "cluster": "/cluster/",
        "operations": "/operations/",
        "packages": "/packages/",
        "package": f"/packages/{_packages(run)}/",
        "tokens": _tokens(),
        "operation": f"/operations/{operation.pk}/",
        "choose-pipeline": "/jobs/new/",
        "new-job": "/jobs/new/?pipeline=flights",
        "new-version": f"{job}/versions/new/",
    }


def _incident(run: Run, operation: Operation) -> Incident:
    """An open incident of a run with findings, a note, an alert that arrived and one that waits."""
    now, user = timezone.now(), operation.requested_by
    assert user
    causes = [
        Finding(
            rule="backpressure", operator="window", sentence="Backpressure from `sessions`, which is 97 % busy.",
            remedy="Raise the parallelism of the job, or make the code of `sessions` cheaper.", act="rescale",
            since=now - timedelta(minutes=9),
        ),
        Finding(
            rule="checkpoints-fail", sentence="The last 2 checkpoints expired.", remedy="Open the failed checkpoint.",
            act="", since=now - timedelta(minutes=7),
        ),
    ]  # fmt: skip
    incident = Incident.objects.create(
        job=run.job, run_id=run.pk, level=causes[0].level, cause=encode(causes[0]), operator_name="sessions",
        opened_at=now - timedelta(minutes=9), taken_by=user, taken_at=now - timedelta(minutes=6),
    )  # fmt: skip
    for cause in causes:
        incident.findings.create(
            rule=cause.rule, operator=cause.operator, level=cause.level, first_sentence=cause.sentence,
            finding=encode(cause), since=cause.since or now,
            ended_at=None if cause.operator else now - timedelta(minutes=2),
        )  # fmt: skip
    incident.notes.create(kind=NoteKind.TAKE, created_by=user, created_at=now - timedelta(minutes=6))
    incident.notes.create(text="The airline sends twice the flights today.", created_by=user, created_at=now)
    channel, _ = Channel.objects.get_or_create(name="night shift", address="https://hooks.example.com/weir")
    message: dict[str, Any] = {"cause": encode(causes[0])}
    times = {"created_at": incident.opened_at, "delivered_at": incident.opened_at, "due_at": None}
    incident.deliveries.create(channel=channel, event="opened", message=message, tries=1, **times)
    incident.deliveries.create(
        channel=channel, event="changed", message=message, tries=2, created_at=now - timedelta(minutes=1),
        error="The receiver answered with status 503.",
    )  # fmt: skip
    return incident


def _tokens() -> str:
    """The page of the tokens of each user: a token that has expired, and one that has not."""
    now = timezone.now()
    for user in User.objects.all():
        for hint, scopes, age_days, used_h in (("weir_Ab3d", ["operate"], 31, 40), ("weir_Qx7_", [], 12, 3)):
            created_at = now - timedelta(days=age_days)
            ApiToken.objects.create(
                user=user, digest=f"{hint} of {user}", hint=hint, scopes=scopes, created_at=created_at,
                expires_at=created_at + timedelta(days=30), used_at=now - timedelta(hours=used_h),
            )  # fmt: skip
    return "/tokens/"


def _packages(run: Run) -> str:
    """The digest of a package, beside a rejected one. The forms of a version then have a choice of packages."""
    described = {"pipelines": [{"name": "flights", "schema": run.version.parameter_schema(rows.SCHEMA)}],
                 "distributions": {"flights": "2.1", "regex": "2026.11.3"}}  # fmt: skip
    columns = {"state": "ready", "size": 812_345, "created_by": User.objects.first(), "description": described}
    package, _ = Package.objects.get_or_create(digest="3f2a91bc0d12" + 52 * "7", defaults=columns)
    error = {"code": "broken-package", "field": "package", "detail": f"flights cannot be imported:\n{TRACEBACK}"}
    rejected = {"state": "rejected", "size": 45_000_000, "error": error}
    Package.objects.get_or_create(digest="0a77de41ffb2" + 52 * "1", defaults=rejected)
    return package.pk


def _bulk(run: Run, operation: Operation) -> BulkOperation:
    """A bulk act that requested `operation`."""
    assert operation.requested_by
    results = [bulk_result(run.job_id, operation=operation)]
    return BulkOperation.objects.create(
        kind=operation.kind, requested_by=operation.requested_by, results=results, reason=operation.reason,
        created_at=operation.created_at,
    )  # fmt: skip


def bulk_result(job: int, refusal: str = "", operation: Operation | None = None) -> dict[str, Any]:
    """The result of an act on several jobs for one of them."""
    requested = str(operation.pk) if operation else None
    return {"job": job, "operation": requested, "refusal": refusal, "changes": False, "effect": ""}


def run_in_other_state(state: str, *, is_whole: bool = False) -> Run:
    """A run that restarts, has failed or has finished. `is_whole`: as in `pages_of_state`."""
    operators = rows.live()["operators"]
    if state == "finished":
        operators = {uid: {**operator, "state": "finished"} for uid, operator in operators.items()}
    live = rows.live(None, operators=operators)
    if state == "restarting":  # the report of the attempt that lost its slots
        live = rows.live(None, slots=[])
    failure = FAILURE if state == "failed" else None
    changes: dict[str, Any] = {"token": 9_000 + 10 * OTHER_STATES.index(state), "failure": failure, "live": live}
    upto = None if is_whole else 189 if state == "restarting" else 214
    if is_whole:
        changes |= TIMES[state]
    run = numbers.run_with_story(f"flights-{state}", state, upto, **changes)
    rows.operations_of(run, User.objects.latest("pk"))
    return run


def pages_of_other_states() -> dict[str, str]:
    """Jobs that have finished, have failed, restart or never ran: their pages and the pages of their runs."""
    return {name: path for state in OTHER_STATES for name, path in pages_of_state(state).items()} | pages_without_run()


def pages_of_state(state: str, *, is_whole: bool = False) -> dict[str, str]:
    """The pages of a job whose run is in a state.

    `is_whole`: the run has all its checkpoints, not only those of its story, and begins and ends as in `TIMES`.
    """
    run = run_in_other_state(state, is_whole=is_whole)
    return {f"job-{state}": f"/jobs/{run.job_id}/", f"run-{state}": f"/runs/{run.pk}/"}


def pages_without_run() -> dict[str, str]:
    """The page of a job that never ran, and a list without jobs."""
    return {"job-new": f"/jobs/{rows.job('flights-new').pk}/", "jobs-none": "/jobs/?q=no-such-job"}
