"""The age of a checkpoint counts from its trigger on every page: it covers the input up to that moment."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from console.checkpoints.models import Checkpoint
from console.health.housekeeping import store_verdicts
from console.health.models import JobHealth
from tests.console.ui import blocks, rows

AGE, TOOK = timedelta(minutes=47), timedelta(minutes=44)


@pytest.fixture
def slow(operator: object) -> Checkpoint:
    """A checkpoint that was triggered 47 min ago and completed 3 min ago."""
    run = rows.run(rows.job())
    return rows.checkpoint(
        run, 7, triggered_at=timezone.now() - AGE, duration_ms=round(TOOK / timedelta(milliseconds=1))
    )


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/", "/jobs/{job}/", "/jobs/{job}/restore/?checkpoint={pk}", "/jobs/{job}/checkpoints/",
        "/jobs/{job}/checkpoints/retention/", "/jobs/{job}/checkpoints/statistics/",
        "/jobs/bulk/?kind=cancel&job={job}",
    ],
)  # fmt: skip
def test_pages_count_the_age_of_a_checkpoint_from_its_trigger(at_console: Client, slow: Checkpoint, path: str) -> None:
    said = blocks.text(at_console.get(path.format(job=slow.job_id, pk=slow.pk)))
    assert re.search(r"\b47 min( \d+ s)? ago", said)
    assert not re.search(r"\b3 min( \d+ s)? ago", said)


def test_jobs_are_ordered_by_the_moment_to_which_a_failure_goes_back(slow: Checkpoint) -> None:
    store_verdicts()
    assert JobHealth.objects.get().recovery_at == slow.triggered_at
