"""Ages in sentences: plain text with places, which survive the row of a verdict and tick on the page."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client
from django.utils import timezone

from console.health.ages import Age, marked_age, read_ages
from console.health.housekeeping import store_verdicts
from tests.console.ui import rows

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def test_a_sentence_has_its_ages_by_place() -> None:
    first, second = NOW - timedelta(seconds=75), NOW - timedelta(milliseconds=300)
    text, ages = read_ages(f"Failed {marked_age(first, NOW)} ago, and again {marked_age(second, NOW)} ago.")
    assert text == "Failed 1 min 15 s ago, and again under 1 s ago."
    assert ages == (Age(7, 17, first), Age(33, 42, second))
    assert [text[age.start : age.end] for age in ages] == ["1 min 15 s", "under 1 s"]
    assert read_ages("No age.") == ("No age.", ())


@pytest.mark.django_db
def test_the_age_in_a_sentence_ticks_on_page_and_list_and_is_text_over_rest(browser: Client) -> None:
    """It stood still beside ages that ticked: *No checkpoint has completed for 3 min* for the life of a poll."""
    run = rows.run(rows.job())
    point = rows.checkpoint(run, 7, triggered_at=timezone.now() - timedelta(seconds=200))
    store_verdicts()
    assert point.completed_at
    completed = point.completed_at.isoformat(timespec="milliseconds")
    age = rf'<time datetime="{re.escape(completed)}"[^>]* data-tick="since">3 min \d+ s'
    for path in ("/jobs/", f"/jobs/{run.job_id}/"):
        page = browser.get(path).content.decode().replace("\N{NO-BREAK SPACE}", " ")
        assert re.search(f"No checkpoint has completed for {age}", page), path
    health = browser.get(f"/api/v1/jobs/{run.job_id}/").json()["health"]
    assert re.fullmatch(
        r"No checkpoint has completed for 3 min \d+ s; one is due every 5\.0 s\. .*", health["sentence"]
    )
