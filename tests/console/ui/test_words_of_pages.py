"""One thing has one name on all pages."""

import re

import pytest
from django.test import Client

from console.checkpoints.models import QUERY_STATES, REVIEW_STATES, Checkpoint
from console.jobs.models import ATTEMPT_OUTCOMES, RUN_STATES, STAGE_STATES, VERSION_STATES
from console.operations.models import OPERATION_STATES
from console.ui.status import STATUSES
from tests.console.ui import blocks, rows

PAGES = (
    "/jobs/{job}/", "/jobs/{job}/checkpoints/", "/jobs/{job}/checkpoints/statistics/", "/jobs/{job}/drain/",
    "/jobs/{job}/checkpoints/compare/?base=6&other=7", "/jobs/{job}/restore/?checkpoint={pk}", "/runs/{run}/",
    "/checkpoints/{pk}/",
)  # fmt: skip


@pytest.fixture
def newest(operator: object) -> Checkpoint:
    """The second of two checkpoints, in which the operator `join`, named "join airlines", had finished."""
    live = rows.live()
    live["operators"]["join"] |= {"state": "finished"}
    run = rows.run(rows.job(), live=live)
    rows.attempts(run)
    for number in (6, 7):
        checkpoint = rows.checkpoint(run, number, finished_operators=["join"])
    return checkpoint


@pytest.mark.parametrize("path", PAGES)
def test_pages_use_the_same_words(at_console: Client, newest: Checkpoint, path: str) -> None:
    page = at_console.get(path.format(job=newest.job_id, run=newest.run_id, pk=newest.pk))
    said = blocks.text(page)
    for other in ("Full checkpoint data size", "Checkpointed data size", "Token", "Attempt token"):
        assert other not in said
    assert not re.search(r">Size</th>|>Size</dt>", page.content.decode())


@pytest.mark.parametrize(
    ("path", "markup"),
    [
        ("/jobs/{job}/", 'data-label="Finished operators" class="wrap">join airlines<'),
        ("/checkpoints/{pk}/", '<dt>Finished operators</dt><dd class="plain">join airlines<'),
        ("/jobs/{job}/restore/?checkpoint={pk}", 'data-label="Finished operators">join airlines<'),
        (
            "/jobs/{job}/restore/?checkpoint={pk}",
            'class="anywhere">sessions<span class="under mono">window</span>',
        ),
        ("/jobs/{job}/drain/", "Already finished: join airlines, airlines."),
    ],
)
def test_operators_have_the_names_of_the_graph(at_console: Client, newest: Checkpoint, path: str, markup: str) -> None:
    page = at_console.get(path.format(job=newest.job_id, run=newest.run_id, pk=newest.pk))
    assert markup in page.content.decode()


@pytest.mark.parametrize(
    ("kind", "choices"),
    [
        ("run", RUN_STATES), ("version", VERSION_STATES), ("stage", STAGE_STATES), ("attempt", ATTEMPT_OUTCOMES),
        ("operation", OPERATION_STATES), ("query", QUERY_STATES), ("review", REVIEW_STATES),
    ],
)  # fmt: skip
def test_filters_and_the_admin_have_the_words_of_pages(kind: str, choices: list[tuple[str, str]]) -> None:
    """A checkpoint was "Unreviewed" in the admin, and "Not reviewed" on its page."""
    assert choices == [(state, STATUSES[kind][state].word) for state, _ in choices]
