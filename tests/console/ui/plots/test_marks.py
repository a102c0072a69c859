"""The labels of events: words beside a mark where the axis has room."""

from datetime import UTC, datetime

import pytest
from django.test import Client

from console.jobs.models import Attempt
from console.operations.models import Operation
from console.ui.plots.marks import LabelPlace, Mark, place_labels
from tests.console.ui import blocks, numbers, rows

AT = datetime(2026, 11, 23, 12, tzinfo=UTC)
BESIDE, BESIDE_LEFT = LabelPlace(is_left=False, is_below=False), LabelPlace(is_left=True, is_below=False)
BELOW, BELOW_LEFT = LabelPlace(is_left=False, is_below=True), LabelPlace(is_left=True, is_below=True)


def places(*marks: tuple[str, float, str]) -> list[LabelPlace | None]:
    """The places of marks of (kind, place on the axis in percent, label)."""
    return [mark.place for mark in place_labels([Mark(kind, at, AT, "", label, "") for kind, at, label in marks])]


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ([("savepoint", 50.0, "savepoint 7")], [BESIDE]),
        ([("savepoint", 95.0, "savepoint 7")], [BESIDE_LEFT]),
        ([("savepoint", 50.0, "a" * 64)], [None]),
        ([("savepoint", 40.0, "savepoint 7"), ("savepoint", 45.0, "savepoint 8")], [BESIDE_LEFT, BESIDE]),
        ([("operation", 40.0, "stop"), ("operation", 41.0, "start")], [BESIDE_LEFT, BESIDE]),
        ([("savepoint", 40.0, "savepoint 7"), ("restart", 39.0, "slot 1 was lost")], [BESIDE, BESIDE_LEFT]),
        ([("savepoint", 35.0, "a" * 40), ("restart", 40.0, "a" * 40), ("savepoint", 45.0, "a")], [None, BELOW, BESIDE]),
        ([("savepoint", 75.0, "a" * 9), ("restart", 90.0, "a" * 40)], [BESIDE, BELOW_LEFT]),
    ],
)  # fmt: skip
def test_a_label_covers_no_mark_and_no_other_label(
    marks: list[tuple[str, float, str]], expected: list[LabelPlace | None]
) -> None:
    assert places(*marks) == expected


def test_the_page_names_the_loss_of_a_slot_and_the_restored_checkpoint(at_console: Client, operator: object) -> None:
    """A reader sees what failed and what the job came back from, without a pointer over the mark."""
    run = numbers.run_with_story("flights-delays", "running", 214)
    plots = blocks.live(at_console.get(f"/jobs/{run.job_id}/"))["plots"]
    restored = run.attempts.latest("token").restored_checkpoint
    savepoint = run.checkpoints.filter(kind="savepoint", status="completed").latest("number")
    assert f">slot 1 was lost: restored {restored}</text>" in plots
    assert f">{savepoint}</text>" in plots
    assert "event-lane two-rows" in plots, "savepoints before and after it leave no room beside it"


def test_a_rescale_is_one_mark(at_console: Client) -> None:
    """Its stop and its restore are parts of it."""
    job = rows.run(rows.job("rescaled")).job
    rescale = Operation.objects.create(job=job, kind="rescale", state="succeeded")
    Operation.objects.create(job=job, kind="stop", state="succeeded", part_of=rescale)
    plots = blocks.live(at_console.get(f"/jobs/{job.pk}/"))["plots"]
    assert "Rescale, succeeded" in plots
    assert "Stop, succeeded" not in plots


def test_a_restore_under_way_is_not_called_done(at_console: Client, operator: object) -> None:
    run = numbers.run_with_story("flights", "restarting", 189)
    restored = run.attempts.latest("token").restored_checkpoint
    labels = [m.label for m in at_console.get(f"/jobs/{run.job_id}/").context["timeline"].marks if m.kind == "restart"]
    assert labels == [f"slot 1 was lost: restoring {restored}"]


def test_a_cause_that_is_a_sentence_loses_its_full_stop(at_console: Client, operator: object) -> None:
    run = numbers.run_with_story("flights", "restarting", 189)
    restored = run.attempts.latest("token").restored_checkpoint
    Attempt.objects.filter(reason__startswith="slot 1").update(reason="The supervisor's lease was lost.")
    labels = [m.label for m in at_console.get(f"/jobs/{run.job_id}/").context["timeline"].marks if m.kind == "restart"]
    assert labels == [f"The supervisor's lease was lost: restoring {restored}"]


def test_a_failed_savepoint_stands_at_its_failure_with_the_mark_of_a_failure(
    at_console: Client, operator: object
) -> None:
    """S2: it had the diamond of a success at its trigger, a minute before the plot and the log showed the failure."""
    run = numbers.run_with_story("flights-delays", "running", 214)
    failed = run.checkpoints.get(reason="expired")
    page = at_console.get(f"/jobs/{run.job_id}/")
    marks = [(mark.time, mark.label) for mark in page.context["timeline"].marks if mark.kind == "failed-savepoint"]
    assert marks == [(failed.completed_at, f"savepoint {failed.number} expired")]
    plots = blocks.live(page)["plots"]
    assert 'class="mark failed-savepoint"' in plots
    assert f" · Savepoint {failed.number} expired after 1 min</title>" in plots
    run.checkpoints.filter(pk=failed.pk).update(reason="suspended")
    kinds = {mark.kind for mark in at_console.get(f"/jobs/{run.job_id}/").context["timeline"].marks}
    assert "failed-savepoint" not in kinds, "an abort is no failure"
