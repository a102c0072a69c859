"""A person at the console, on a real running job: savepoint, drain and restore in a browser; makes README's pictures.

Screenshots go to the folder that WEIR_SCREENSHOTS names, or to `screenshots` below the session's WEIR_VAR.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from examples.demo.api import Api
from stack.settings import ROOT
from tests.acceptance.word_count import PATIENCE_S
from tests.console.ui.browsing import ARGUMENTS
from tests.console.ui.test_every_page import CUT_OFF
from tests.stack.checkout import Checkout
from tests.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PATIENCE_MS = PATIENCE_S * 1000
FEED_S = 25
WIDTH, HEIGHT = 1440, 1000
SCROLLING = ("Picture of the job graph", "Table of rows")  #: as wide as a job and its state are


class Flights:
    """The demo's job, running on the stack, with the year being fed to it."""

    def __init__(self, checkout: Checkout, folder: Path) -> None:
        self.url = checkout.status()["url"].rstrip("/")
        self.password = (checkout.var / "run/password").read_text().strip()
        self.api = Api.login(self.url, "operator", self.password)
        self.job = int(self.api.post("jobs/", {"name": "flights-delays", "pipeline": "flights"})["id"])
        params = {"flights_dir": str(folder / "in"), "output_dir": str(folder / "out")}
        body = {"parallelism": 2, "params": params, "settings": {"checkpoint_interval_ms": 1000}}
        self.api.ready_version(self.job, body, PATIENCE_S)
        self.api.operate(self.job, "start", {}, PATIENCE_S)
        feeder = [sys.executable, "-m", "examples.feeder", "--to", str(folder / "in"), "--seconds", str(FEED_S)]
        self.feeder = subprocess.Popen(feeder, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def weir(self, *arguments: str) -> None:
        """Runs `weir` with a token of its own; it must succeed."""
        token = self.api.post(
            "auth/token/", {"username": "operator", "password": self.password, "scopes": ["define", "operate"]}
        )["token"]
        environment = {**os.environ, "WEIR_URL": self.url, "WEIR_TOKEN": token}
        subprocess.run([sys.executable, "-m", "weir.control", *arguments], cwd=ROOT, env=environment, check=True)

    @property
    def written(self) -> int:
        """Records that have come to the sink."""
        live = self.api.run(int(self.api.latest_run(self.job)["id"]))["live"] or {}
        return int(live.get("operators", {}).get("parquet", {}).get("records_in", 0))

    @property
    def state(self) -> str:
        return str(self.api.latest_run(self.job)["state"])


@pytest.fixture
def flights(checkout: Checkout, tmp_path: Path) -> Iterator[Flights]:
    flights = Flights(checkout, tmp_path)
    yield flights
    flights.feeder.kill()
    flights.feeder.wait()
    if flights.state == "running":
        flights.api.operate(flights.job, "cancel", {}, PATIENCE_S)


@pytest.fixture
def page(chromium: str) -> Iterator[Page]:
    """A window of somebody at a desk; any complaint of the browser fails the test."""
    complaints: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        yield page
        browser.close()
    assert not complaints, "\n".join(complaints)


def picture(page: Page, weir_var: Path, name: str) -> None:
    """Of the page. What is cut off, at this width or on a smaller screen, is a complaint like others."""
    for width in (1280, WIDTH):
        page.set_viewport_size({"width": width, "height": HEIGHT})
        for clipping in page.evaluate(CUT_OFF):
            if not clipping.startswith(SCROLLING):
                page.evaluate("text => console.error(text)", f"cut off in {name} at {width} px: {clipping}")
    folder = Path(os.environ.get("WEIR_SCREENSHOTS") or weir_var / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / f"{name}.png")


def look_into(savepoint: int, flights: Flights, page: Page, weir_var: Path) -> None:
    """The state of a savepoint: SQL that the author saved, with CSV, and the rows of one airline."""
    page.goto(f"{flights.url}/checkpoints/{savepoint}/")
    page.get_by_role("link", name="State", exact=True).click()
    expect(page.locator("tr", has_text="daily_windows")).to_contain_text("keyed")
    page.locator("form", has_text="Open windows by airline").get_by_role("button", name="Run").click()
    expect(page.locator(".status", has_text="Succeeded")).to_be_visible(timeout=PATIENCE_MS)
    expect(page.locator("thead")).to_contain_text("open_windows")
    picture(page, weir_var, "state-query")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download CSV").click()
    table = Path(download.value.path()).read_text().splitlines()
    assert table[0] == "airline,open_windows,flights,cancelled,oldest_day"
    assert sum(int(line.split(",")[2]) for line in table[1:]) > 0, table

    page.locator("#to-state").click()
    page.get_by_role("link", name="windows", exact=True).click()
    page.get_by_label("carrier").fill("B6")
    page.get_by_role("button", name="Show rows").click()
    expect(page.locator(".status", has_text="Succeeded")).to_be_visible(timeout=PATIENCE_MS)
    rows = page.locator("tbody tr")
    assert rows.count() == rows.filter(has_text="JetBlue").count() > 0
    picture(page, weir_var, "state-rows")


def test_savepoint_drain_and_restore_by_hand(flights: Flights, page: Page, weir_var: Path) -> None:
    """What a person sees and presses on a job that really runs on Spark."""
    page.goto(f"{flights.url}/jobs/{flights.job}/")
    page.fill("input[name=username]", "operator")
    page.fill("input[name=password]", flights.password)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="flights-delays")).to_be_visible()

    page.get_by_role("button", name="Take savepoint").click()
    expect(page.locator("tr", has_text="savepoint").first).to_contain_text("Completed", timeout=PATIENCE_MS)
    until(lambda: len(flights.api.checkpoints(flights.job)) > 12 and flights.written > 0, PATIENCE_S)
    page.reload()
    picture(page, weir_var, "job")

    flights.feeder.wait()
    flights.weir("savepoint", "flights-delays", "--timeout", str(PATIENCE_S))
    page.get_by_role("link", name="Drain and finish").click()
    expect(page.locator("main")).to_contain_text("Every open window fires early")
    picture(page, weir_var, "drain")
    page.get_by_role("button", name="Drain and finish").click()
    page.goto(f"{flights.url}/jobs/{flights.job}/")
    expect(page.locator(".status", has_text="Finished").first).to_be_visible(timeout=PATIENCE_MS)
    picture(page, weir_var, "drained")

    savepoints = [row for row in flights.api.checkpoints(flights.job) if row["kind"] == "savepoint"]
    look_into(max(row["id"] for row in savepoints), flights, page, weir_var)

    page.goto(f"{flights.url}/jobs/{flights.job}/")
    page.get_by_role("link", name="Restore").first.click()
    page.get_by_role("region", name="Savepoints", exact=True).get_by_role("radio").last.check()
    page.get_by_label("Parallelism").fill("3")
    page.get_by_label("Parallelism").blur()
    expect(page.locator("#plan")).to_contain_text("starts at parallelism 3")
    expect(page.locator("#plan")).to_contain_text("Output is repeated")
    page.get_by_label("I accept repeated output").check()
    picture(page, weir_var, "restore")
    page.get_by_role("button", name="at parallelism 3").click()
    until(lambda: flights.state in ("running", "failed"), PATIENCE_S)
    run = flights.api.latest_run(flights.job)
    assert (run["state"], run["parallelism"]) == ("running", 3), run
