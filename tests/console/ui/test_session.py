"""Signing in and out, colours, and the pages for when nothing works."""

import re
from datetime import UTC, datetime

import pytest
from django.db import OperationalError, connections
from django.template.loader import render_to_string
from django.test import Client
from playwright.sync_api import expect

from console.accounts.models import User
from console.jobs.models import Attempt, Job
from tests.console.ui import blocks, rows
from tests.console.ui.browsing import Open


def test_signing_in_leads_where_one_wanted_to_go(stranger: Client, operator: User) -> None:
    credentials = {"username": "operator", "password": "a-river-runs", "next": "/operations/"}
    response = stranger.post("/login/", credentials)
    assert response.headers["Location"] == "/operations/"
    assert stranger.get("/jobs/").status_code == 200


@pytest.mark.browser
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("scripts", [True, False])
def test_the_form_leads_where_one_wanted_to_go(signed_in: Open, transactional_db: None, scripts: bool) -> None:
    rows.operator_user()
    with signed_in(java_script_enabled=scripts) as page:
        page.context.clear_cookies()
        page.goto("/operations/")
        page.get_by_label("User name").fill("operator")
        page.get_by_label("Password").fill("a-river-runs")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="Operations", exact=True)).to_be_visible()


def test_signing_in_never_leads_elsewhere(stranger: Client, operator: User) -> None:
    credentials = {"username": "operator", "password": "a-river-runs", "next": "https://elsewhere.example/"}
    assert stranger.post("/login/", credentials).headers["Location"] == "/"


def test_a_wrong_password_is_said(stranger: Client, operator: User) -> None:
    response = stranger.post("/login/", {"username": "operator", "password": "wrong"})
    assert "Please enter a correct username and password" in blocks.text(response)
    assert 'value="operator"' in response.content.decode()


def test_who_is_signed_in_is_not_asked_again(at_console: Client) -> None:
    assert at_console.get("/login/").headers["Location"] == "/"


def test_signing_out_is_a_post(at_console: Client) -> None:
    assert at_console.get("/logout/").status_code == 405
    assert at_console.post("/logout/").headers["Location"] == "/login/"
    assert at_console.get("/jobs/").status_code == 302


@pytest.mark.parametrize("choice", ["light", "dark"])
def test_colours_are_remembered_and_right_from_the_first_paint(stranger: Client, choice: str) -> None:
    response = stranger.post("/theme/", {"theme": choice, "next": "/login/"})
    assert response.headers["Location"] == "/login/"
    assert f'data-theme="{choice}"' in stranger.get("/login/").content.decode()


def test_colours_can_follow_the_system_again(stranger: Client) -> None:
    stranger.post("/theme/", {"theme": "dark"})
    stranger.post("/theme/", {"theme": "system"})
    assert "data-theme=" not in stranger.get("/login/").content.decode()


def test_a_strange_cookie_changes_nothing(stranger: Client) -> None:
    stranger.cookies["weir_theme"] = '"><b>'
    assert "data-theme=" not in stranger.get("/login/").content.decode()


def test_the_switch_never_leads_elsewhere_and_is_a_post(stranger: Client) -> None:
    assert stranger.post("/theme/", {"theme": "dark", "next": "//elsewhere.example/"}).headers["Location"] == "/"
    assert stranger.get("/theme/").status_code == 405


def test_staff_see_the_admin_and_others_do_not(at_console: Client, reading: Client) -> None:
    assert 'href="/admin/"' in at_console.get("/jobs/").content.decode()
    assert 'href="/admin/"' not in reading.get("/jobs/").content.decode()


def test_a_database_that_is_away_is_said_and_not_a_fault(at_console: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    rows.job()

    def refuse(*_: object) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr(connections["default"], "cursor", refuse)
    response = at_console.get("/jobs/")
    monkeypatch.undo()
    assert (response.status_code, response.headers["Retry-After"]) == (503, "5")
    assert "The database cannot be reached" in blocks.text(response)


def test_the_icon_is_found_by_pages_and_by_those_who_ask_without_a_page(stranger: Client) -> None:
    assert (
        '<link rel="icon" href="/static/weir/icon.svg" type="image/svg+xml">'
        in stranger.get("/login/").content.decode()
    )
    response = stranger.get("/favicon.ico", follow=True)
    assert (response.status_code, response.headers["Content-Type"]) == (200, "image/svg+xml")


@pytest.mark.parametrize("code", ["400", "403", "404", "500", "503", "403_csrf"])
def test_error_pages_need_no_context(code: str) -> None:
    assert "<h1>" in render_to_string(f"{code}.html")


def test_a_form_with_too_many_inputs_is_explained(at_console: Client) -> None:
    response = at_console.post("/theme/", {"theme": ["dark"] * 1001})
    assert response.status_code == 400
    assert "A form may have 1,000 inputs" in blocks.text(response)


def test_times_are_absolute_in_a_chosen_zone_and_relative_again(at_console: Client) -> None:
    job = rows.job()
    Job.objects.filter(pk=job.pk).update(created_at=datetime(2026, 1, 31, 23, 30, tzinfo=UTC))
    assert ">01-31 " not in at_console.get("/jobs/").content.decode()
    assert at_console.post("/zone/", {"zone": "Europe/Berlin", "next": "/jobs/"}).headers["Location"] == "/jobs/"
    page = at_console.get("/jobs/").content.decode()
    pattern = r'<span class="nowrap">(2026-)?02-01 00:30:00</span> CET</time>'
    assert re.search(rf'title="2026-01-31 23:30:00 UTC">{pattern}', page)
    at_console.post("/zone/", {"zone": "relative"})
    assert "02-01 00:30:00" not in at_console.get("/jobs/").content.decode()


def test_a_shared_block_has_the_times_of_each_reader(at_console: Client) -> None:
    """Blocks with a key are rendered once for all readers of the same zone."""
    run = rows.run(rows.job(), "failed")
    ended = datetime(2026, 1, 31, 23, 30, tzinfo=UTC)
    Attempt.objects.create(run=run, token=99, started_at=ended, ended_at=ended, outcome="failed", reason="disk full")
    path, local = f"/jobs/{run.job_id}/", "02-01 00:30:00</span> CET</time>"
    assert local not in at_console.get(path).content.decode()
    at_console.post("/zone/", {"zone": "Europe/Berlin"})
    assert local in at_console.get(path).content.decode()
    at_console.post("/zone/", {"zone": "relative"})
    assert local not in at_console.get(path).content.decode()


@pytest.mark.parametrize("name", ["Mars/Olympus", "../../etc/passwd", '"><b>'])
def test_a_zone_that_does_not_exist_is_not_kept(at_console: Client, name: str) -> None:
    rows.job()
    at_console.post("/zone/", {"zone": name})
    assert not at_console.cookies["weir_zone"].value
    at_console.cookies["weir_zone"] = name
    page = at_console.get("/jobs/").content.decode()
    assert "now</time>" in page or "ago</time>" in page
