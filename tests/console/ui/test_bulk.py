"""Acts on several jobs: what is asked before, and the result of each."""

import re
from typing import Any

from django.test import Client
from django.utils import timezone

from console.health import passes
from console.operations.models import Operation
from tests.console.ui import blocks, rows


def _selection(kind: str, *jobs: int) -> dict[str, Any]:
    return {"kind": kind, "job": list(jobs)}


def test_jobs_are_selected_in_the_list(at_console: Client) -> None:
    job = rows.run(rows.job()).job
    page = at_console.get("/jobs/").content.decode()
    assert re.search(rf'<input type="checkbox" form="bulk" name="job" id="select-{job.pk}" value="{job.pk}"', page)
    assert re.search(r'<form id="bulk"[^>]* action="/jobs/bulk/"', page)


def test_each_job_has_its_own_result_and_a_refusal_stops_no_other(at_console: Client) -> None:
    running, other = rows.run(rows.job("alpha")), rows.run(rows.job("beta"))
    ended = rows.run(rows.job("gamma"), "stopped")
    chosen = _selection("stop", running.job_id, other.job_id, ended.job_id)
    asked = at_console.get("/jobs/bulk/", chosen)
    said = blocks.text(asked)
    assert "Each of these jobs takes a savepoint, commits the output up to it and ends." in said
    assert "Possible for 2 of 3 jobs now." in said
    assert re.search(r"gamma Stopped Not possible [^.]+\.", said)
    assert not Operation.objects.exists()
    key = re.findall(r'name="key" value="(\w+)"', asked.content.decode())[0]
    for _ in range(2):  # a form that is sent twice requests each stop once
        said = blocks.text(at_console.post("/jobs/bulk/", {**chosen, "key": key, "reason": "move of the storage"}))
        assert "2 of 3 requests accepted." in said
        assert re.search(r"alpha Running Stop In queue|alpha Running Stop Queued", said)
        assert "gamma Stopped Refused" in said
    found = Operation.objects.order_by("job__name")
    assert [(row.run, row.kind, row.reason) for row in found] == [
        (running, "stop", "move of the storage"), (other, "stop", "move of the storage"),
    ]  # fmt: skip


def test_a_bulk_act_takes_few_queries(at_console: Client, django_assert_max_num_queries: object) -> None:
    jobs = [rows.run(rows.job(f"job {number}")).job_id for number in range(9)]
    passes.silent_since(timezone.now())  # cached from here on
    with django_assert_max_num_queries(5):  # type: ignore[operator]
        at_console.get("/jobs/bulk/", _selection("savepoint", *jobs))


def test_a_reader_requests_nothing(reading: Client) -> None:
    run = rows.run(rows.job())
    chosen = _selection("savepoint", run.job_id)
    assert re.search(r'id="do-all" disabled', reading.get("/jobs/bulk/", chosen).content.decode())
    assert "You may not operate jobs" in blocks.text(reading.post("/jobs/bulk/", chosen))
    assert not Operation.objects.exists()


def test_an_unknown_act_and_no_selection(at_console: Client) -> None:
    assert at_console.get("/jobs/bulk/", _selection("cancel", 1)).status_code == 400
    assert "No job is selected." in blocks.text(at_console.get("/jobs/bulk/", {"kind": "stop"}))
