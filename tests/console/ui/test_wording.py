"""Words of pages for a reader who decides: the result of an operation, names of operators, no false alarm."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from console.checkpoints.models import Checkpoint
from console.jobs.models import JobVersion, Run
from console.operations.models import Operation
from console.pages.lineage import request_of
from console.ui.inspector import SubtaskLine
from console.ui.templatetags import weir
from tests.console.ui import blocks, numbers, rows


def test_a_line_does_not_end_between_a_number_and_its_unit() -> None:
    gap = "\N{NO-BREAK SPACE}"
    said = weir.sentence("`join` took 0.16 s, 3 min 9 s and 90 % of 3 steps, at 84 k/s and 1.2 MiB.")
    expected = "<code>join</code> took 0.16_s, 3_min 9_s and 90_% of 3 steps, at 84_k/s and 1.2_MiB."
    assert said == expected.replace("_", gap)


def test_an_operation_shows_the_savepoint_that_it_took_instead_of_its_last_phase(at_console: Client) -> None:
    run = rows.run(rows.job())
    rows.operation(run.job, "stop", run=run, phase="completed", result={"checkpoint": 208}, reason="before the upgrade")
    for path in (f"/runs/{run.pk}/", f"/jobs/{run.job_id}/", "/operations/"):
        said = blocks.text(at_console.get(path))
        assert "Succeeded savepoint 208" in said, path
        assert "Succeeded completed" not in said, path
    assert "before the upgrade" in blocks.text(at_console.get(f"/runs/{run.pk}/"))


def savepoint_with_request(run: Run, number: int, status: str, **ended: Any) -> tuple[Checkpoint, Operation]:
    """A savepoint and the operation that requested it."""
    triggered = timezone.now() - timedelta(minutes=1)
    fields: dict[str, Any] = {"triggered_at": triggered, "completed_at": timezone.now()}
    if status == "failed":
        fields |= {"reason": "expired", "detail": "'window' (window), 'parquet' (parquet) and 1 more"}
    savepoint = rows.checkpoint(run, number, "savepoint", status, **fields)
    operation = rows.operation(
        run.job, "savepoint", "failed" if status == "failed" else "succeeded", run=run, reason="before the upgrade",
        created_at=triggered - timedelta(seconds=1), ended_at=timezone.now(), **ended,
    )  # fmt: skip
    return savepoint, operation


def test_a_failed_savepoint_leads_to_its_operation_and_cannot_be_named(at_console: Client) -> None:
    """Its page named the late subtasks twice, and offered to name, pin and copy files that do not exist."""
    run = rows.run(rows.job())
    failed, operation = savepoint_with_request(run, 8, "failed")
    page = at_console.get(f"/checkpoints/{failed.pk}/")
    said = blocks.text(page)
    assert "Subtasks 0 and 1 of" in said
    assert "and 1 more" not in said
    assert f'id="its-request" href="/operations/{operation.pk}/"' in page.content.decode()
    assert "before the upgrade" in said
    assert "Take savepoint…" in said
    assert "Save name and note" not in said
    assert "Copy to a folder" not in said
    Run.objects.update(state="finished")
    assert "Take savepoint…" not in blocks.text(at_console.get(f"/checkpoints/{failed.pk}/"))


@pytest.mark.django_db
def test_a_savepoint_has_the_operation_that_names_it_or_the_only_one_of_its_time() -> None:
    run = rows.run(rows.job())
    failed, operation = savepoint_with_request(run, 8, "failed")
    savepoint, request = savepoint_with_request(run, 9, "completed", result={"checkpoint": 9})
    assert (request_of(failed), request_of(savepoint)) == (operation, request)
    savepoint_with_request(run, 10, "failed")
    assert (request_of(failed), request_of(savepoint)) == (None, request)
    assert request_of(rows.checkpoint(rows.run(rows.job("other")), 1, "stop")) is None


def test_a_single_version_cannot_be_compared(at_console: Client) -> None:
    job = rows.job()
    path = f"/jobs/{job.pk}/versions/"
    assert "Show differences" not in blocks.text(at_console.get(path))
    JobVersion.objects.create(job=job, number=2, parallelism=2, state="compiling")
    assert "Show differences" in blocks.text(at_console.get(path))


def test_evidence_has_times_to_the_second_in_utc(at_console: Client) -> None:
    checkpoint = rows.checkpoint(rows.run(rows.job()), 7)
    said = blocks.text(at_console.get(f"/checkpoints/{checkpoint.pk}/evidence/"))
    assert f"Triggered {checkpoint.triggered_at:%Y-%m-%d %H:%M:%S} UTC" in said
    assert not re.search(r"\d\d:\d\d:\d\d\.\d", said)


def test_only_a_subtask_with_more_than_its_part_is_marked(at_console: Client) -> None:
    run = rows.run(rows.job(version={"parallelism": 4}), live=rows.live(4), parallelism=4)
    numbers.record(run, hours=0.1, fine_minutes=5, weight=6)
    page = at_console.get(f"/jobs/{run.job_id}/?node=window")
    lines: list[SubtaskLine] = page.context["inspector"].shown_subtasks
    marked = re.findall(r'class="under( skewed)?">(\d\.\d) × mean', page.content.decode())
    assert marked == [(" skewed" if line.share > 1 else "", f"{line.share:.1f}") for line in lines if line.skew]
    assert {mark for mark, _ in marked} == {"", " skewed"}


def test_a_page_that_does_not_update_has_the_switch_disabled(at_console: Client) -> None:
    job = rows.job()
    switch = re.compile(r'<button[^>]* id="pause"[^>]*>')
    still, live = (
        switch.findall(at_console.get(path).content.decode())[0] for path in (f"/jobs/{job.pk}/edit/", "/jobs/")
    )
    assert ' disabled title="This page does not update by itself."' in still
    assert "disabled" not in live


def test_a_phase_has_the_same_name_in_legends_and_in_tables(at_console: Client) -> None:
    run = rows.run(rows.job())
    rows.history(run)
    numbers.record(run)
    newest = run.checkpoints.filter(status="completed").latest("number")
    for path in (f"/jobs/{run.job_id}/", f"/checkpoints/{newest.pk}/"):
        said = blocks.text(at_console.get(path)).lower()
        assert "pre-barrier" in said, path
        assert "pre barrier" not in said, path
