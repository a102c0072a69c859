"""Requests each page and endpoint in this process, with templates and connections warmed up."""

import gzip
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from statistics import median, quantiles
from typing import Any, Final

from django.conf import settings
from django.db import connection
from django.test import Client

from benchmarks.console.filling import Filled
from console.checkpoints.models import Checkpoint
from console.jobs.models import Run
from console.operations.models import Operation

_HEAD: Final = ("page or endpoint", "queries", "p50 ms", "p95 ms", "KB")
_WARM_UP: Final = 3
_BLOCK: Final = re.compile(r'id="live-([\w-]+)" data-digest="(\w+)"')


@dataclass(frozen=True, slots=True)
class Measurement:
    name: str
    status: int
    queries: int
    p50_ms: float
    p95_ms: float
    compressed_bytes: int


def report(filled: Filled, times: int, only: str) -> int:
    """Prints a line per page. Returns the exit code."""
    client = Client(headers={"host": settings.ALLOWED_HOSTS[0]})
    client.force_login(filled.user)
    _line(_HEAD)
    is_complete = True
    for name, path, headers in _requests(client, filled):
        if only not in name:
            continue
        found = _measure(client, name, path, headers, times)
        is_complete &= found.status in (HTTPStatus.OK, HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
        shown = name if found.status == HTTPStatus.OK else f"{name} ({found.status})"
        _line((shown, str(found.queries), f"{found.p50_ms:.1f}", f"{found.p95_ms:.1f}",
               f"{found.compressed_bytes / 1024:.1f}"))  # fmt: skip
    return 0 if is_complete else 1


def _line(cells: Sequence[str]) -> None:
    name, *numbers = cells
    sys.stdout.write(f"{name:44}{''.join(f'{number:>9}' for number in numbers)}\n")
    sys.stdout.flush()


def _requests(client: Client, filled: Filled) -> list[tuple[str, str, dict[str, str]]]:
    """Name, path and headers. Polls come first: plots move with time, and so does what a browser has of them."""
    run, job = filled.run, filled.run.job_id
    checkpoint = Checkpoint.objects.filter(run=run, status="completed").order_by("-number")[5].pk
    operation = Operation.objects.filter(job=job).order_by("created_at")[0].pk
    ended = Run.objects.exclude(ended_at=None).latest("pk").job_id
    page = client.get(f"/jobs/{job}/")
    poll = {"HX-Request": "true", "X-Blocks": " ".join(map("=".join, _BLOCK.findall(page.content.decode())))}
    tag = client.get(f"/jobs/{job}/", headers={"HX-Request": "true"})["ETag"]
    pages = {
        "list of jobs": "/jobs/",
        "list of jobs, by name": "/jobs/?sort=name",
        "list of jobs, search": "/jobs/?q=0042",
        "list of jobs, by state": "/jobs/?state=running",
        "job, 15 min": f"/jobs/{job}/?span=15min",
        "job, 6 h": f"/jobs/{job}/?span=6h",
        "job, 7 d": f"/jobs/{job}/?span=7d",
        "job, an operator": f"/jobs/{job}/?node=step-7",
        "job that has ended": f"/jobs/{ended}/",
        "numbers as CSV": f"/jobs/{job}/history.csv?span=7d",
        "checkpoints": f"/jobs/{job}/checkpoints/",
        "checkpoints, filtered": f"/jobs/{job}/checkpoints/?outcome=failed&slower_than=300ms",
        "statistics of checkpoints": f"/jobs/{job}/checkpoints/statistics/",
        "checkpoint": f"/checkpoints/{checkpoint}/",
        "run": f"/runs/{run.pk}/",
        "restore": f"/jobs/{job}/restore/",
        "rescale": f"/jobs/{job}/rescale/",
        "operations": "/operations/",
        "operation": f"/operations/{operation}/",
        "api: jobs": "/api/v1/jobs/",
        "api: job": f"/api/v1/jobs/{job}/",
        "api: runs": f"/api/v1/jobs/{job}/runs/",
        "api: run": f"/api/v1/runs/{run.pk}/",
        "api: checkpoints": f"/api/v1/jobs/{job}/checkpoints/",
        "api: checkpoint": f"/api/v1/checkpoints/{checkpoint}/",
        "api: statistics": f"/api/v1/jobs/{job}/checkpoints/statistics/",
        "api: operations": f"/api/v1/jobs/{job}/operations/",
        "api: metrics": f"/api/v1/runs/{run.pk}/metrics/",
        "api: metrics of subtasks": f"/api/v1/runs/{run.pk}/metrics/subtasks/?operator=step-7",
        "prometheus": "/metrics",
        "admin: checkpoints": "/admin/checkpoints/checkpoint/",
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
        found = client.get(path, headers=headers)
        return found, found.getvalue() if found.streaming else found.content

    for _ in range(_WARM_UP):
        answer()
    with connection.execute_wrapper(count):
        response, content = answer()
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        answer()
        took.append((time.perf_counter() - begun) * 1000)
    p95 = quantiles(took, n=20)[-1] if len(took) > 1 else took[0]
    return Measurement(name, response.status_code, len(queries), median(took), p95, len(gzip.compress(content, 6)))
