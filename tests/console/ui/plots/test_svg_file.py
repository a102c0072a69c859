"""Plots as SVG files: well-formed, with title, scale and paths, and with the colours of the pages."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from django.test import Client

from console.jobs.models import Run
from console.ui.plots import svg_file
from tests.console.ui import numbers, rows

CSS = Path(__file__).resolve().parents[4] / "console/ui/static/weir/weir.css"
NAME = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def run(db: None) -> Run:
    run = rows.run(rows.job('delays <"&">'))
    rows.attempts(run)
    rows.history(run)
    numbers.record(run)
    return run


def test_a_plot_is_a_file_of_its_own(at_console: Client, run: Run) -> None:
    page = at_console.get(f"/jobs/{run.job_id}/?span=6h").content.decode()
    restored = run.attempts.latest("token").restored_checkpoint
    titles = {"records": "Records", "lag": "Watermark lag", "checkpoints": "Checkpoint duration", "state": "State size"}
    for key, title in titles.items():
        assert f'href="/jobs/{run.job_id}/plots/{key}.svg?span=6h"' in page
        answer = at_console.get(f"/jobs/{run.job_id}/plots/{key}.svg?span=6h")
        assert (answer.status_code, answer["Content-Type"]) == (200, "image/svg+xml")
        assert answer["Content-Disposition"] == f'attachment; filename="job-{run.job_id}-{key}.svg"'
        root = ElementTree.fromstring(answer.content)
        assert root.findtext(f"{NAME}title") == f'{title} of delays <"&">'
        assert [path for path in root.iter(f"{NAME}path") if path.get("d")], "there are numbers to draw"
        text = " ".join(root.itertext())
        assert re.search(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC to ", text)
        assert f"slot 1 was lost: restored {restored}" in text, "a reader of the file has no pointer over the mark"
        assert "style" not in answer.content.decode()
        assert "class=" not in answer.content.decode()


def test_an_unknown_plot_and_a_job_without_runs_are_not_found(at_console: Client, run: Run) -> None:
    assert at_console.get(f"/jobs/{run.job_id}/plots/other.svg").status_code == 404
    assert at_console.get(f"/jobs/{rows.job('new').pk}/plots/records.svg").status_code == 404


def test_colours_are_those_of_the_pages_by_day() -> None:
    css = CSS.read_text()
    assert all(f"light-dark({colour}," in css for colour in svg_file._COLOURS.values())
