"""Passes of the console's own worker: they are recorded, and a page says since when they are missing."""

import re
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from console.celery import app
from console.health import passes
from console.health.models import HousekeepingPass
from console.housekeeping import advance
from tests.console.ui import blocks, rows

pytestmark = pytest.mark.django_db

AJAX = {"HX-Request": "true"}
SAYS = "The console's worker has completed no pass since"


def passed_ago(seconds: float, task: str = "reconciler") -> Any:
    at = timezone.now() - timedelta(seconds=seconds)
    cache.clear()
    HousekeepingPass.objects.update_or_create(task=task, defaults={"at": at})
    return at


@pytest.mark.parametrize(
    ("task", "name"),
    [("console.tasks.reconcile", "reconciler"), ("console.tasks.store_verdicts", "verdicts")],
)
def test_a_pass_of_a_task_is_recorded(task: str, name: str) -> None:
    before = passed_ago(90, name)
    app.loader.import_default_modules()
    app.tasks[task]()
    assert HousekeepingPass.objects.get().at > before + timedelta(seconds=80)


def test_a_pass_that_fails_is_no_pass() -> None:
    def fail() -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        passes.record_passes("reconciler", fail)()
    assert not HousekeepingPass.objects.exists()


def test_a_pass_that_leaves_its_work_to_another_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage hung in the pass that had the lock, and each later pass counted as complete."""
    monkeypatch.setattr(advance, "try_lock", lambda key: nullcontext(False))
    app.loader.import_default_modules()
    app.tasks["console.tasks.advance_operations"]()
    assert not HousekeepingPass.objects.exists()


def test_the_task_that_is_silent_for_longest_counts() -> None:
    now = timezone.now()
    assert passes.silent_since(now) is None, "no worker has run yet"
    passed_ago(1, "verdicts")
    old = passed_ago(29)
    assert passes.silent_since(now) is None
    assert passes.silent_since(old + passes.MAX_SILENCE + timedelta(seconds=1)) == old


def test_a_pass_before_the_clock_was_set_back_does_not_count_as_recent() -> None:
    """A worker that was silent since then counted as well until the clock reached that time again."""
    at = passed_ago(-3600)
    assert passes.silent_since(timezone.now()) == passes.reconciler_silent_since(timezone.now()) == at
    passed_ago(-3600, passes.STAGES)
    assert passes.stages_silent_since(timezone.now()) is not None


@pytest.mark.parametrize("path", ["/jobs/", "/jobs/{job}/", "/runs/{run}/", "/operations/", "/reviews/", "/cluster/",
                                  "/jobs/new/", "/jobs/{job}/edit/", "/checkpoints/{checkpoint}/"])  # fmt: skip
def test_every_page_says_that_the_worker_is_silent(browser: Client, path: str) -> None:
    """One banner; a page that is open shows it with its next poll, although no row of the page has changed."""
    run = rows.run(rows.job())
    where = path.format(job=run.job_id, run=run.pk, checkpoint=rows.checkpoint(run, 7).pk)
    passed_ago(5)
    assert SAYS not in blocks.text(browser.get(where))
    poll = browser.get(where, headers=AJAX)
    at = passed_ago(45)
    said = blocks.text(browser.get(where))
    assert len(re.findall(f"{SAYS} {at:%Y-%m-%d %H:%M:%S} UTC, for (4[5-9]|5[0-9]) s", said)) == 1
    if tag := poll.headers.get("ETag"):
        following = browser.get(where, headers={**AJAX, "If-None-Match": tag})
        assert SAYS in blocks.live(following)["outage"]
        passed_ago(1)
        over = browser.get(where, headers={**AJAX, "If-None-Match": following["ETag"]})
        assert blocks.live(over)["outage"] == ""


STAGES_SAY = "The console's worker of the queue stages has completed no pass since"


def test_any_pass_in_the_queue_stages_shows_that_a_worker_of_it_is_free() -> None:
    task = "console.tasks.advance_operations"
    assert settings.CELERY_TASK_ROUTES[task] == {"queue": "stages"}
    before = passed_ago(300, passes.STAGES)
    app.loader.import_default_modules()
    app.tasks[task]()
    assert HousekeepingPass.objects.get().at > before + timedelta(seconds=290)


def test_every_page_says_that_no_worker_of_the_queue_stages_is_free(browser: Client) -> None:
    """Without one no version compiles and no drill runs; a worker that compiles for a minute is no outage."""
    run = rows.run(rows.job())
    passed_ago(1)
    passed_ago(90, passes.STAGES)
    path = f"/jobs/{run.job_id}/"
    assert STAGES_SAY not in blocks.text(browser.get(path))
    poll = browser.get(path, headers=AJAX)
    at = passed_ago(200, passes.STAGES)
    for where in (path, "/jobs/", "/cluster/", f"/jobs/{run.job_id}/edit/"):
        said = blocks.text(browser.get(where))
        assert len(re.findall(f"{STAGES_SAY} {at:%Y-%m-%d %H:%M:%S} UTC, for 3 min [2-5][0-9] s", said)) == 1
        assert SAYS not in said
    following = browser.get(path, headers={**AJAX, "If-None-Match": poll.headers["ETag"]})
    assert STAGES_SAY in re.sub("<[^>]+>", "", blocks.live(following)["outage"])
