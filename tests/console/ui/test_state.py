"""The pages of a checkpoint's state: from the states to a table, with its key, next page and CSV."""

import re
from typing import Any

import pytest
from django.test import Client

from console.checkpoints import state_queries
from console.checkpoints.models import Checkpoint, StateQuery
from console.jobs.models import Pipeline
from tests.console.ui import blocks, rows

pytestmark = pytest.mark.django_db

TABLE: dict[str, Any] = {
    "columns": [
        {"name": "key_group", "type": "int", "is_key": False},
        {"name": "carrier", "type": "string", "is_key": True},
        {"name": "flights", "type": "bigint", "is_key": False},
    ],
    "rows": [[3, "<AA>", 12], [4, "DL", None]],
    "keys": [{"name": "carrier", "type": "string"}],
    "is_cut": True,
    "has_cut_cells": False,
    "cursor": {"group": 4, "skip": 1},
}
WINDOW_MS = 1_370_995_200_000  #: 2013-06-12 00:00
WINDOWS: dict[str, Any] = {
    "columns": [
        {"name": "carrier", "type": "string", "is_key": True},
        {"name": "window_start", "type": "bigint", "is_key": True},
    ],
    "rows": [["AA", WINDOW_MS]],
    "keys": [{"name": "carrier", "type": "string"}, {"name": "window_start", "type": "int64"}],
    "is_cut": False,
    "has_cut_cells": False,
    "cursor": {},
}


@pytest.fixture
def savepoint(db: None) -> Checkpoint:
    checkpoint = rows.checkpoint(rows.run(rows.job(), "stopped"), 208, kind="savepoint")
    Pipeline.objects.filter(pk="flights").update(queries={"open windows by airline": "SELECT * FROM window_state"})
    return checkpoint


def answered(query: StateQuery, table: dict[str, Any]) -> str:
    state_queries.claim(query.pk, "a worker")
    state_queries.succeed(query.pk, "a worker", table)
    return f"/state-queries/{query.pk}/"


def test_the_page_of_a_checkpoint_leads_to_its_states(at_console: Client, savepoint: Checkpoint) -> None:
    assert (
        f'href="/checkpoints/{savepoint.pk}/state/"' in at_console.get(f"/checkpoints/{savepoint.pk}/").content.decode()
    )
    page = blocks.text(at_console.get(f"/checkpoints/{savepoint.pk}/state/"))
    assert "sessions window state keyed 2 11 198 1.2 MiB window_state" in page
    assert "Open windows by airline" in page
    assert "SELECT * FROM window_state" in page


def test_the_begin_of_a_window_is_a_time_too(at_console: Client, savepoint: Checkpoint) -> None:
    query = rows.state_query(savepoint, result=WINDOWS)
    said = blocks.text(at_console.get(f"/state-queries/{query.pk}/"))
    assert f"{WINDOW_MS} 2013-06-12 00:00" in said


def test_a_state_is_chosen_and_its_rows_are_asked_for(reading: Client, savepoint: Checkpoint) -> None:
    """Whoever may look may ask."""
    page = reading.get(f"/checkpoints/{savepoint.pk}/state/?operator=window&state=state")
    assert "Rows of state of window" in blocks.text(page)
    form = {"operator": "window", "state": "state", "key.carrier": "AA", "key.flight": "", "group": "3", "skip": "1"}
    response = reading.post(f"/checkpoints/{savepoint.pk}/state/ask/", form)
    query = StateQuery.objects.get()
    assert response.headers["Location"] == f"/state-queries/{query.pk}/"
    assert query.request["key"] == {"carrier": "AA"}
    assert query.request["cursor"] == {"group": 3, "skip": 1}
    waiting = reading.get(f"/state-queries/{query.pk}/")
    assert "The query waits for a worker of the queue stages" in blocks.text(waiting)
    assert "data-poll" in waiting.content.decode()
    reading.post(f"/state-queries/{query.pk}/cancel/")
    assert "Canceled" in blocks.text(reading.get(f"/state-queries/{query.pk}/"))


def test_a_table_leads_to_the_next_page_and_to_csv(at_console: Client, savepoint: Checkpoint) -> None:
    at_console.post(f"/checkpoints/{savepoint.pk}/state/ask/", {"operator": "window", "state": "state"})
    query = StateQuery.objects.get()
    path = answered(query, TABLE)
    response = at_console.get(path)
    text, markup = blocks.text(response), response.content.decode()
    assert "2 rows" in text
    assert "&lt;AA&gt;" in markup
    assert "There are more rows on the next page" in text
    assert '<input type="hidden" name="skip" value="1">' in markup
    assert 'name="key.carrier"' in markup
    assert at_console.get(f"{path}csv/").getvalue().decode().splitlines()[0] == "key_group,carrier,flights"


def test_saved_sql_is_run_from_the_page_and_its_error_is_shown(at_console: Client, savepoint: Checkpoint) -> None:
    at_console.post(f"/checkpoints/{savepoint.pk}/state/ask/", {"query": "open windows by airline"})
    query = StateQuery.objects.get()
    state_queries.claim(query.pk, "w")
    state_queries.renew(query.pk, "w", {"phase": "reading", "tasks": 8, "tasks_done": 3})
    assert "Reading: 3 of 8 Spark tasks completed so far" in blocks.text(at_console.get(f"/state-queries/{query.pk}/"))
    state_queries.fail(query.pk, "w", {"code": "bad-sql", "detail": "open windows by airline: no column", "field": ""})
    text = blocks.text(at_console.get(f"/state-queries/{query.pk}/"))
    assert "open windows by airline: no column bad-sql" in text
    assert at_console.get(f"/state-queries/{query.pk}/csv/").status_code == 409


def test_what_cannot_be_asked_is_said_on_the_page(at_console: Client, savepoint: Checkpoint) -> None:
    page = f"/checkpoints/{savepoint.pk}/state/"
    answer = at_console.post(f"{page}ask/", {"operator": "windows", "state": "state"}, follow=True)
    assert "no operator 'windows' has state in this checkpoint" in blocks.text(answer)
    Checkpoint.objects.filter(pk=savepoint.pk).update(discarded_at=savepoint.completed_at)
    assert "Savepoint 208 was discarded: there is no state to read." in blocks.text(at_console.get(page))


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("2013-06-12", WINDOW_MS), ("2013-06-12 00:00", WINDOW_MS),
        ("2013-06-12T02:00+02:00", WINDOW_MS), (str(WINDOW_MS), str(WINDOW_MS)), ("June", "June"),
    ],
)  # fmt: skip
def test_the_time_of_a_window_is_typed_as_a_date(
    at_console: Client, savepoint: Checkpoint, typed: str, value: object
) -> None:
    """It had to be a number of milliseconds. A value that is no time is refused by the stage, which names its type."""
    form = {"operator": "window", "state": "state", "key.window_start": typed, "key.carrier": "2013-06-12"}
    at_console.post(f"/checkpoints/{savepoint.pk}/state/ask/", form)
    query = StateQuery.objects.get()
    assert query.request["key"] == {"window_start": value, "carrier": "2013-06-12"}
    if isinstance(value, int):
        page = at_console.get(answered(query, WINDOWS)).content.decode()
        assert '<span class="mono">window_start = 2013-06-12 00:00:00</span>' in page
        assert 'name="key.window_start" value="2013-06-12 00:00:00"' in page


def test_times_of_a_session_are_read_and_typed_as_dates(at_console: Client, savepoint: Checkpoint) -> None:
    """They were plain numbers of milliseconds."""
    columns = [{"name": name, "type": "bigint", "is_key": name == ":session"} for name in (":session", ":last")]
    table = {**WINDOWS, "columns": columns, "rows": [[WINDOW_MS, WINDOW_MS + 60_000]],
             "keys": [{"name": ":session", "type": "int64"}]}  # fmt: skip
    query = rows.state_query(savepoint, result=table)
    said = blocks.text(at_console.get(f"/state-queries/{query.pk}/"))
    assert f"{WINDOW_MS} 2013-06-12 00:00 {WINDOW_MS + 60_000} 2013-06-12 00:01" in said
    assert ":session bigint: ms, or a time such as 2013-06-12 08:00 in UTC" in said


def test_types_of_keys_have_the_names_of_the_columns(at_console: Client, savepoint: Checkpoint) -> None:
    query = rows.state_query(savepoint, result=WINDOWS)
    said = blocks.text(at_console.get(f"/state-queries/{query.pk}/"))
    assert "int64" not in said
    assert "window_start bigint: ms, or a time such as 2013-06-12 08:00 in UTC" in said


def test_a_part_of_an_aggregate_is_told_from_its_result(at_console: Client, savepoint: Checkpoint) -> None:
    """The column `mean_delay:sum` looked like a mean. REST and SQL have its name, so the header keeps it."""
    names = ("hour:sum", "mean_delay:sum", "mean_delay:count", "delay:late")
    columns = [{"name": name, "type": "double", "is_key": name == "hour:sum"} for name in names]
    table = {**TABLE, "columns": columns, "rows": [[1.0, 2.0, 3.0, 4.0]]}
    said = blocks.text(at_console.get(answered(rows.state_query(savepoint, "queued"), table)))
    assert "hour:sum double · key mean_delay:sum double · sum kept for mean_delay" in said
    assert "mean_delay:count double · count kept for mean_delay delay:late double 1.0" in said


def test_a_query_under_way_names_what_it_reads_and_its_usual_time(at_console: Client, savepoint: Checkpoint) -> None:
    """It said nothing but that Spark starts, for 17 s."""
    query = rows.state_query(savepoint, "running")
    said = blocks.text(at_console.get(f"/state-queries/{query.pk}/"))
    assert "It reads 1.2 MiB of state files, 11 198 rows. Cancel" in said
    rows.state_query(savepoint)
    said = blocks.text(at_console.get(f"/state-queries/{query.pk}/"))
    assert "rows. Usually it takes 17 s with the start of Spark, by the newest queries of this job. Cancel" in said
    sql = rows.state_query(savepoint, "queued", request={"kind": "sql", "name": "open windows", "sql": "SELECT 1"})
    assert "It reads the states that the SQL names. Cancel" in blocks.text(at_console.get(f"/state-queries/{sql.pk}/"))


ROWS: dict[str, Any] = {"kind": "rows", "operator": "window", "state": "state", "key": {}, "cursor": {}}


@pytest.mark.parametrize(
    ("body", "is_cut", "heading"),
    [
        (ROWS, True, "2 rows on this page"),
        ({**ROWS, "cursor": {"group": 4, "skip": 1}}, False, "2 rows on this page"),
        (ROWS, False, "2 rows"),
        ({"kind": "sql", "name": "all", "sql": "SELECT 1"}, True, "The first 2 rows"),
    ],
)
def test_the_rows_of_a_page_are_not_called_all_rows(
    at_console: Client, savepoint: Checkpoint, body: dict[str, Any], is_cut: bool, heading: str
) -> None:
    query = rows.state_query(savepoint, request=body, result={**TABLE, "is_cut": is_cut})
    page = at_console.get(f"/state-queries/{query.pk}/").content.decode()
    (title,) = re.findall('<h2 id="table-head">(.*?)</h2>', page)
    assert re.sub("<[^>]+>", "", title) == heading
