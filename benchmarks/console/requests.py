"""Requests each page and endpoint in this process, with templates and connections warmed up."""

import gzip
import re
import sys
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from statistics import median, quantiles
from typing import Any, Final

import psutil
from django.conf import settings
from django.db import connection
from django.test import Client

import console.wsgi  # noqa: F401  # exempts modules from collections of garbage, as in the web process
from benchmarks.console.filling import Filled
from benchmarks.console.measurement import Measurement
from console.checkpoints.models import Checkpoint
from console.jobs.models import Job, Run
from console.operations.models import BulkOperation, Operation

_HEAD: Final = ("page or endpoint", "queries", "p50 ms", "p95 ms", "cpu ms", "of SQL", "KB")
_WARM_UP: Final = 3
_BULK: Final = 50  #: jobs of an act on several jobs
_BLOCK: Final = re.compile(r'id="live-([\w-]+)" data-digest="(\w+)"')


def report(filled: Filled, times: int, only: str) -> list[Measurement]:
    """Prints a line per page, then the faults."""
    client = Client(headers={"host": settings.ALLOWED_HOSTS[0]})
    client.force_login(filled.user)
    _line(_HEAD)
    measured = []
    for name, path, headers in _requests(client, filled):
        if only not in name:
            continue
        measurement = _measure(client, name, path, headers, times)
        title = name if measurement.status == HTTPStatus.OK else f"{name} ({measurement.status})"
        times_ms = (measurement.p50_ms, measurement.p95_ms, measurement.cpu_ms, measurement.sql_cpu_ms)
        figures = (*times_ms, measurement.compressed_bytes / 1024)
        _line((title, str(measurement.queries), *(f"{figure:.1f}" for figure in figures)))
        measured.append(measurement)
    sys.stdout.writelines(f"{measurement.name}: {fault}\n" for measurement in measured for fault in measurement.faults)
    return measured


def _line(cells: Sequence[str]) -> None:
    name, *numbers = cells
    sys.stdout.write(f"{name:44}{''.join(f'{number:>9}' for number in numbers)}\n")
    sys.stdout.flush()


def _requests(client: Client, filled: Filled) -> list[tuple[str, str, dict[str, str]]]:
    """Name, path and headers. Polls come first: plots move with time, and so does what a browser has of them."""
    run, job = filled.run, filled.run.job_id
    newest = Checkpoint.objects.filter(run=run, status="completed").order_by("-number")
    snapshot = newest.filter(kind="checkpoint", discarded_at=None)[0]
    checkpoint, earlier = snapshot.pk, newest[500].number
    operation = Operation.objects.filter(job=job).order_by("created_at")[0].pk
    ended = Run.objects.exclude(ended_at=None).latest("pk").job_id
    savepoint = Checkpoint.objects.filter(run=run, kind="savepoint", status="completed").latest("number").pk
    failed = Checkpoint.objects.filter(run=run, status="failed").latest("number").pk
    running = list(Job.objects.filter(latest_run__state="running").order_by("pk")[:_BULK].values_list("pk", flat=True))
    selected = "".join(f"&job={pk}" for pk in running)
    results = [{"job": pk, "operation": None, "refusal": "The run is busy.", "changes": False, "effect": ""}
               for pk in running]  # fmt: skip
    bulk = BulkOperation.objects.create(kind="stop", requested_by=filled.user, results=results)
    page = client.get(f"/jobs/{job}/")
    poll = {"HX-Request": "true", "X-Blocks": " ".join(map("=".join, _BLOCK.findall(page.content.decode())))}
    tag = client.get(f"/jobs/{job}/", headers={"HX-Request": "true"})["ETag"]
    pages = {
        "list of jobs": "/jobs/",
        "list of jobs, by name": "/jobs/?sort=name",
        "list of jobs, search": "/jobs/?q=0042",
        "list of jobs, by state": "/jobs/?state=running",
        "list of jobs, by health": "/jobs/?health=attention",
        "list of jobs, by rate": "/jobs/?sort=-rate",
        "job, 15 min": f"/jobs/{job}/?span=15min",
        "job, 6 h": f"/jobs/{job}/?span=6h",
        "job, 7 d": f"/jobs/{job}/?span=7d",
        "job, an operator": f"/jobs/{job}/?node=step-7",
        "job that has ended": f"/jobs/{ended}/",
        "act on 50 jobs": f"/jobs/bulk/?kind=stop{selected}",
        "result of an act on 50 jobs": f"/jobs/bulk/{bulk.pk}/",
        "versions": f"/jobs/{job}/versions/",
        "jobs as CSV": "/jobs.csv",
        "runs as CSV": f"/jobs/{job}/runs.csv",
        "checkpoints as CSV": f"/jobs/{job}/checkpoints.csv",
        "operations as CSV": "/operations/?format=csv",
        "numbers as CSV": f"/jobs/{job}/history.csv?span=7d",
        "checkpoints": f"/jobs/{job}/checkpoints/",
        "checkpoints, filtered": f"/jobs/{job}/checkpoints/?outcome=failed&slower_than=300ms",
        "statistics of checkpoints": f"/jobs/{job}/checkpoints/statistics/",
        "comparison of checkpoints": f"/jobs/{job}/checkpoints/compare/?base={earlier}&other={snapshot.number}",
        "trend of checkpoints": f"/jobs/{job}/checkpoints/trend/",
        "retention": f"/jobs/{job}/checkpoints/retention/",
        "schedule of savepoints": f"/jobs/{job}/checkpoints/schedule/",
        "checkpoint": f"/checkpoints/{checkpoint}/",
        "checkpoint that has failed": f"/checkpoints/{failed}/",
        "evidence": f"/checkpoints/{checkpoint}/evidence/",
        "clone": f"/checkpoints/{checkpoint}/clone/",
        "discard": f"/checkpoints/{savepoint}/discard/",
        "state of a checkpoint": f"/checkpoints/{checkpoint}/state/",
        "orphaned files": f"/jobs/{job}/checkpoints/orphans/",
        "trend as CSV": f"/jobs/{job}/checkpoints/trend.csv",
        "run": f"/runs/{run.pk}/",
        "subtasks": f"/runs/{run.pk}/subtasks/?operator=step-7",
        "start": f"/jobs/{ended}/start/",
        "savepoint": f"/jobs/{job}/savepoint/",
        "stop": f"/jobs/{job}/stop/",
        "drain": f"/jobs/{job}/drain/",
        "cancel": f"/jobs/{job}/cancel/",
        "restore": f"/jobs/{job}/restore/",
        "rescale": f"/jobs/{job}/rescale/",
        "new version": f"/jobs/{job}/versions/new/",
        "now": "/",
        "incidents": "/incidents/",
        "review desk": "/reviews/",
        "cluster": "/cluster/",
        "operations": "/operations/",
        "operations, search": "/operations/?q=job-00042",
        "operation": f"/operations/{operation}/",
        "api: jobs": "/api/v1/jobs/",
        "api: job": f"/api/v1/jobs/{job}/",
        "api: versions": f"/api/v1/jobs/{job}/versions/",
        "api: runs": f"/api/v1/jobs/{job}/runs/",
        "api: run": f"/api/v1/runs/{run.pk}/",
        "api: checkpoints": f"/api/v1/jobs/{job}/checkpoints/",
        "api: checkpoint": f"/api/v1/checkpoints/{checkpoint}/",
        "api: statistics": f"/api/v1/jobs/{job}/checkpoints/statistics/",
        "api: comparison": f"/api/v1/jobs/{job}/checkpoints/compare/?base={earlier}&other={snapshot.number}",
        "api: trend": f"/api/v1/jobs/{job}/checkpoints/trend/",
        "api: retention": f"/api/v1/jobs/{job}/checkpoints/retention/",
        "api: schedule": f"/api/v1/jobs/{job}/checkpoints/schedule/",
        "api: orphaned files": f"/api/v1/jobs/{job}/checkpoints/orphans/",
        "api: mapping": f"/api/v1/checkpoints/{savepoint}/mapping/",
        "api: state of a checkpoint": f"/api/v1/checkpoints/{checkpoint}/state/",
        "api: evidence": f"/api/v1/checkpoints/{checkpoint}/evidence/",
        "api: incidents": "/api/v1/incidents/",
        "api: reviews": "/api/v1/reviews/",
        "api: operations": f"/api/v1/jobs/{job}/operations/",
        "api: operations of all jobs": "/api/v1/operations/",
        "api: cluster": "/api/v1/cluster/",
        "api: failures by cause": f"/api/v1/jobs/{job}/failures/",
        "api: preview of a stop": f"/api/v1/jobs/{job}/preview/?act=stop",
        "api: preview of a cancel": f"/api/v1/jobs/{job}/preview/?act=cancel",
        "api: start of a run": f"/api/v1/runs/{run.pk}/start/",
        "tokens": "/tokens/",
        "api: metrics": f"/api/v1/runs/{run.pk}/metrics/",
        "api: metrics of subtasks": f"/api/v1/runs/{run.pk}/metrics/subtasks/?operator=step-7",
        "prometheus": "/metrics",
        "admin: checkpoints": "/admin/checkpoints/checkpoint/",
        "admin: checkpoints, search": "/admin/checkpoints/checkpoint/?q=job-00042",
        "admin: operations": "/admin/operations/operation/",
        "admin: operations, search": "/admin/operations/operation/?q=job-00042",
        "admin: runs": "/admin/jobs/run/",
        "admin: runs, search": "/admin/jobs/run/?q=job-00042",
        "admin: jobs, search": "/admin/jobs/job/?q=0042",
    }
    polls = [
        ("poll of the job, revision known", f"/jobs/{job}/", {**poll, "If-None-Match": tag}),
        ("poll of the job, blocks known", f"/jobs/{job}/", poll),
    ]
    return [*polls, *((name, path, {}) for name, path in pages.items())]


def _measure(client: Client, name: str, path: str, headers: dict[str, str], times: int) -> Measurement:
    queries: list[str] = []

    def count(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        queries.append(sql)
        return execute(sql, params, many, context)

    def answer() -> Any:
        response: Any = client.get(path, headers=headers)
        return response, next(iter(response.streaming_content)) if response.streaming else response.content

    for _ in range(_WARM_UP):
        answer()
    with connection.execute_wrapper(count):
        response, content = answer()
    took = []
    own_s, sql_s = time.process_time(), _postgres_s()
    for _ in range(times):
        begun = time.perf_counter()
        answer()
        took.append((time.perf_counter() - begun) * 1000)
    own_s, sql_s = time.process_time() - own_s, _postgres_s() - sql_s
    return Measurement(
        name=name,
        status=response.status_code,
        queries=len(queries),
        p50_ms=median(took),
        p95_ms=quantiles(took, n=20)[-1] if len(took) > 1 else took[0],
        cpu_ms=(own_s + sql_s) * 1000 / times,
        sql_cpu_ms=sql_s * 1000 / times,
        compressed_bytes=len(gzip.compress(content, 6)),
        is_page=response.headers.get("Content-Type", "").startswith("text/html"),
    )


def _postgres_s() -> float:
    """Processor time of all processes of Postgres: those that run, and those that have ended."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (backend,) = cursor.fetchone()
    postmaster = psutil.Process(backend).parent()
    assert postmaster is not None
    ended = postmaster.cpu_times()
    running = [child.cpu_times() for child in postmaster.children()]
    return ended.children_user + ended.children_system + sum(times.user + times.system for times in running)
