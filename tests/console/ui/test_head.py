"""The top of the page of a job: what an operator needs in five seconds, and the graph close below."""

import re

import pytest
from django.test import Client

from console.jobs.models import Job, Run
from tests.console.ui import blocks, rows
from tests.console.ui.browsing import Open


def test_state_health_rates_horizon_and_acts_come_first(at_console: Client) -> None:
    run = rows.run(rows.job())
    rows.checkpoint(run, 7)
    Job.objects.filter(pk=run.job_id).update(owner="team delays", runbook="https://wiki.example/delays")
    said = blocks.text(at_console.get(f"/jobs/{run.job_id}/"))
    order = ("Running for", "Runbook", "Reads 84 k/s, writes 12 /s, watermark 2013-06-12 08:00.",
             "If it failed now: back to checkpoint 7", "Take savepoint", "Cancel…", "More", "Named savepoint…", "About",
             "Delays of the year 2013.", "pipeline flights owner team delays", "Job graph")  # fmt: skip
    assert re.search(".*".join(map(re.escape, order)), said)


def test_a_run_without_a_flow_has_no_rates(at_console: Client) -> None:
    run = rows.run(rows.job(), "restarting")
    assert "Reads" not in blocks.text(at_console.get(f"/jobs/{run.job_id}/"))


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("width", "most"), [(1120, 360), (1440, 330)])
def test_the_graph_is_seen_at_once(signed_in: Open, running: Run, width: int, most: int) -> None:
    with signed_in(width) as page:
        page.goto(f"/jobs/{running.job_id}/")
        top = page.get_by_role("heading", name="Job graph").bounding_box()
        assert top is not None
        assert top["y"] <= most
