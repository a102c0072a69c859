"""The page of all subtasks of an operator: orders by address, pages of 100, bounded size and queries."""

import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from console.jobs.models import Run
from console.metrics.models import SubtaskMetrics
from runtime.core.checkpoint.acknowledgements import PHASES
from tests.console.ui import blocks, rows

WIDE = 230


@pytest.fixture
def wide(db: None) -> Run:
    """A run whose window has 230 subtasks: number 7 is hot, 11 waits, 13 has most state, 17 has not acknowledged."""
    graph = {**rows.GRAPH, "parallelism": WIDE, "max_parallelism": 256}
    run = rows.run(rows.job(version={"parallelism": WIDE, "max_parallelism": 256, "graph": graph}))
    numbers: dict[str, list[Any]] = {
        "index": list(range(WIDE)),
        "records_in": [900 if n == 7 else 100 for n in range(WIDE)],
        "records_out": [0] * WIDE,
        "busy": [0.25] * WIDE,
        "backpressured": [0.8 if n == 11 else 0.1 for n in range(WIDE)],
        "watermark": [rows.JUNE_2013_MS] * WIDE,
        "in_flight_bytes": [0] * WIDE,
    }
    SubtaskMetrics.objects.create(run_id=run.pk, at=timezone.now(), token=run.token, operators={"window": numbers})
    acknowledged: dict[str, list[Any]] = {
        "index": list(range(WIDE)),
        "at_ms": [40 + n for n in range(WIDE)],
        **{f"{phase}_ms": [1.0] * WIDE for phase in PHASES},
        "written_bytes": [10] * WIDE,
        "state_bytes": [4096 if n == 13 else n for n in range(WIDE)],
    }
    rows.checkpoint(run, 1, acknowledgements={"window": acknowledged}, is_stored=False)
    awaited = {**acknowledged, "at_ms": [None if n == 17 else 40 + n for n in range(WIDE)]}
    rows.checkpoint(run, 2, status="in_progress", acknowledgements={"window": awaited})
    return run


def indexes(page: Any) -> list[int]:
    return [
        int(index) for index in re.findall(r'<th scope="row" class="number mono">(\d+)</th>', page.content.decode())
    ]


@pytest.mark.parametrize(
    ("sort", "first"),
    [("", 7), ("-rate", 7), ("rate", 0), ("-backpressure", 11), ("-state", 13), ("-acknowledgement", 17),
     ("acknowledgement", 0), ("state", 0), ("<b>", 7)],
)  # fmt: skip
def test_the_address_has_the_order(at_console: Client, wide: Run, sort: str, first: int) -> None:
    page = at_console.get(f"/runs/{wide.pk}/subtasks/", {"operator": "window", "sort": sort})
    assert (indexes(page)[0], len(indexes(page))) == (first, 100)


def test_pages_have_every_subtask_once(at_console: Client, wide: Run) -> None:
    path, subtasks = f"/runs/{wide.pk}/subtasks/?operator=window&sort=-state", []
    for first, last in ((1, 100), (101, 200), (201, 230)):
        page = at_console.get(path)
        assert f"{first} to {last} of 230" in blocks.text(page)
        subtasks += indexes(page)
        following = re.search(r'id="page-next" href="([^"]+)"', page.content.decode())
        path = f"/runs/{wide.pk}/subtasks/{following[1].replace('&amp;', '&')}" if following else ""
    assert path == ""
    assert sorted(subtasks) == list(range(WIDE))
    beyond = at_console.get(f"/runs/{wide.pk}/subtasks/?operator=window&after=1000")
    assert "There are only 230 subtasks." in blocks.text(beyond)


def test_values_name_their_checkpoints(at_console: Client, wide: Run) -> None:
    said = blocks.text(at_console.get(f"/runs/{wide.pk}/subtasks/?operator=window&sort=-acknowledgement"))
    assert "17 20 /s 25 % 10 % 2013-06-12 08:00 17 B not yet 229" in said
    assert "State: in checkpoint 1. Acknowledgements: of checkpoint 2, since its trigger." in said


def test_the_page_is_small_and_takes_few_queries(
    at_console: Client, wide: Run, django_assert_max_num_queries: Any
) -> None:
    with django_assert_max_num_queries(12):
        page = at_console.get(f"/runs/{wide.pk}/subtasks/?operator=window", headers={"Accept-Encoding": "gzip"})
    assert len(page.content) < 30_000


def test_the_inspector_leads_to_all_subtasks(at_console: Client, wide: Run) -> None:
    page = at_console.get(f"/jobs/{wide.job_id}/?node=window")
    assert f'href="/runs/{wide.pk}/subtasks/?operator=window"' in page.content.decode()
    assert "Subtasks all 230" in blocks.text(page)
    assert at_console.get(f"/runs/{wide.pk}/subtasks/?operator=nothing").status_code == 404
    assert at_console.get(f"/runs/{wide.pk}/subtasks/").status_code == 404
