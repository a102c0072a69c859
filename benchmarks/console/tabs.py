"""100 open tabs at one web process: how long the console takes to answer, and how old the tabs become.

Each tab shows the page of a running job, whose numbers change each second, and polls at the pace that the console sets,
as its own script does (`polling.js`). Times are of the client: with one web process they include the wait behind other
tabs.
"""

import asyncio
import logging
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from statistics import median, quantiles
from typing import Any, Final

import httpx
from django.conf import settings
from django.db import connection
from django.db.models.functions import Now
from django.test import Client

from benchmarks.console.filling import Filled
from benchmarks.console.measurement import TARGET_MS, TabTimes
from console.jobs.models import Run
from console.ui.live.pace import HEADER

NAME: Final = "tabs"  #: for `--only`
TABS: Final = 100
SECONDS: Final = 60.0
WARM_UP_S: Final = 45.0  #: until the tabs have found their pace
_JITTER: Final = 0.25  #: as in polling.js
_FIRST_S: Final = 2.0  #: within which all tabs open
_BLOCK: Final = re.compile(r'id="live-([\w-]+)" data-digest="(\w+)"')


@dataclass
class Tab:
    path: str
    blocks: dict[str, str] = field(default_factory=dict)
    etag: str = ""


@dataclass
class Answers:
    """Milliseconds of each answer after the warm-up, and by status their number."""

    began: float
    times_ms: list[float] = field(default_factory=list)
    statuses: dict[int, int] = field(default_factory=dict)

    def add(self, status: int, ms: float) -> None:
        if time.monotonic() - self.began >= WARM_UP_S:
            self.times_ms.append(ms)
            self.statuses[status] = self.statuses.get(status, 0) + 1


def report(filled: Filled, seconds: float = SECONDS) -> TabTimes:
    """Prints the figures."""
    client = Client(headers={"host": settings.ALLOWED_HOSTS[0]})
    client.force_login(filled.user)
    session = client.cookies[settings.SESSION_COOKIE_NAME].value
    running = list(Run.objects.filter(state="running").values_list("job_id", "pk").order_by("pk"))
    jobs = (running * TABS)[:TABS]
    with _web_process() as port:
        answers = asyncio.run(_open_tabs(port, session, jobs, seconds))
    times = TabTimes(
        len(jobs),
        p50_ms=median(answers.times_ms),
        p95_ms=quantiles(answers.times_ms, n=20)[-1],
        pause_s=len(jobs) * seconds / len(answers.times_ms),
        statuses=answers.statuses,
    )
    sys.stdout.write(
        f"{times.tabs} tabs at one web process, {seconds:.0f} s: {len(answers.times_ms)} polls, "
        f"p50 {times.p50_ms:.0f} ms, p95 {times.p95_ms:.0f} ms (goal {TARGET_MS:.0f}), "
        f"a poll of a tab every {times.pause_s:.1f} s, statuses {times.statuses}\n"
    )
    return times


async def _open_tabs(port: int, session: str, jobs: list[tuple[int, int]], seconds: float) -> Answers:
    logging.getLogger("httpx").setLevel(logging.WARNING)  # or it reports each request
    answers = Answers(time.monotonic())
    cookies = {settings.SESSION_COOKIE_NAME: session}
    limits = httpx.Limits(max_connections=TABS)
    async with httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{port}", cookies=cookies, timeout=60.0, limits=limits
    ) as web:
        until = time.monotonic() + WARM_UP_S + seconds
        tabs = (
            _keep_open(web, Tab(f"/jobs/{job}/"), answers, until, Random(number))  # noqa: S311
            for number, (job, _) in enumerate(jobs)
        )
        await asyncio.gather(*tabs, _change_numbers([run for _, run in jobs], until))
    return answers


async def _keep_open(web: httpx.AsyncClient, tab: Tab, answers: Answers, until: float, chance: Random) -> None:
    await asyncio.sleep(chance.random() * _FIRST_S)
    tab.blocks = dict(_BLOCK.findall((await web.get(tab.path)).text))
    while (began := time.monotonic()) < until:
        headers = {"HX-Request": "true", "X-Blocks": " ".join(map("=".join, tab.blocks.items()))}
        answer = await web.get(tab.path, headers={**headers, **({"If-None-Match": tab.etag} if tab.etag else {})})
        took = time.monotonic() - began
        answers.add(answer.status_code, took * 1000)
        tab.etag = answer.headers.get("ETag", "")
        tab.blocks |= dict(_BLOCK.findall(answer.text))
        await asyncio.sleep(float(answer.headers[HEADER]) / 1000 * (1 - _JITTER * chance.random()))


async def _change_numbers(runs: list[int], until: float) -> None:
    """Writes the live numbers of every run each second, as their job masters do."""
    while (began := time.monotonic()) < until:
        await asyncio.to_thread(_write_numbers, runs)
        await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - began)))


def _write_numbers(runs: list[int]) -> None:
    Run.objects.filter(pk__in=runs).update(live_at=Now())
    connection.close()  # of this thread


@contextmanager
def _web_process() -> Iterator[int]:
    """The port of the console, served by one process of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "weir.control", "web", "--port", str(port)]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    web = subprocess.Popen(command, env={**os.environ, "WEIR_HTTP_PORT": str(port)}, **quiet)
    try:
        _wait_for(port)
        yield port
    finally:
        web.terminate()
        web.wait(10)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
