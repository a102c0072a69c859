"""The pages in a real Chromium: wide and narrow, by day and by night, with and without scripts, under a strict policy.

Screenshots go to the folder that WEIR_SCREENSHOTS names, or to `screenshots` below the session's WEIR_VAR.
"""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright
from pytest_django.live_server_helper import LiveServer

from console import formats
from console.checkpoints.models import Checkpoint, StateQuery
from console.jobs.models import Run
from console.operations.models import Operation
from tests.console.ui import numbers, rows

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync"]  # fmt: skip
WIDTHS = [1440, 1024, 390]
#: Colours change no layout: by night one width is enough for each run of the tests.
LOOKS = [
    *((width, "light") for width in WIDTHS),
    (1024, "dark"),
    *(pytest.param(width, "dark", marks=pytest.mark.slow) for width in (1440, 390)),
]
POLL_MS = 6_000  #: three polls
NAMES = {"prepared": "windows_by_carrier_and_origin", "window": "WWWWWWWWWWWW"}
LATE = "no acknowledgement from window-of-one-day/0, window-of-one-day/1, parquet/0 and 17 more"
QUIET_MS = 3_000  #: long enough for a poll that must not come

#: Listens for what the policy forbids before any script of the page runs.
WATCH = "addEventListener('securitypolicyviolation', (e) => console.error(`policy: ${e.violatedDirective}`))"

Open = Callable[..., Any]
Scheme = Literal["light", "dark"]


@pytest.fixture(scope="module")
def browser(chromium: str, django_db_setup: None) -> Iterator[Browser]:
    """For this module only, and after the test database is made: Playwright's loop runs in the test's thread.

    Django would take that thread for an async one, also while it clears the tables after a test, hence the variable.
    """
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        running = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield running
        running.close()


@pytest.fixture(scope="session")
def screenshots(weir_var: Path) -> Path:
    folder = Path(os.environ.get("WEIR_SCREENSHOTS") or weir_var / "screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture
def running(transactional_db: None) -> Run:
    """A job in full flow, and somebody to watch it."""
    user = rows.operator_user()
    job = rows.job()
    run = rows.run(job)
    rows.attempts(run)
    rows.history(run)
    rows.operation(job, run=run, requested_by=user, result={"checkpoint": 208}, phase="completed")
    for state in ("succeeded", "running"):
        rows.state_query(Checkpoint.objects.get(number=213), state)
    return run


@pytest.fixture
def signed_in(browser: Browser, live_server: LiveServer) -> Open:
    """Opens a page of somebody who has signed in through the form; fails on any complaint of the browser."""

    @contextmanager
    def opened(width: int = 1440, scheme: Scheme = "light", forgive: str = "", **options: Any) -> Iterator[Page]:
        context = browser.new_context(
            base_url=live_server.url, viewport={"width": width, "height": 900}, color_scheme=scheme, **options
        )
        context.set_default_timeout(20_000)
        page, complaints = context.new_page(), list[str]()
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.add_init_script(WATCH)
        try:
            sign_in(page)
            yield page
            assert [text for text in complaints if not forgive or forgive not in text] == []
        finally:
            context.close()

    return opened


def sign_in(page: Page) -> None:
    page.goto("/login/?next=/jobs/")
    page.get_by_label("User name").fill("operator")
    page.get_by_label("Password").fill("a-river-runs")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()


def sideways(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


def others(job_id: int) -> dict[str, str]:
    checkpoint, operation = Checkpoint.objects.get(number=213), Operation.objects.latest("created_at")
    return {
        "jobs": "/jobs/",
        "bulk": f"/jobs/bulk/?kind=stop&job={job_id}",
        "job": f"/jobs/{job_id}/",
        "job-node": f"/jobs/{job_id}/?node=window&span=6h",
        "versions": f"/jobs/{job_id}/versions/",
        "edit": f"/jobs/{job_id}/edit/",
        "run": f"/runs/{Run.objects.get(job=job_id).pk}/",
        "checkpoint": f"/checkpoints/{checkpoint.pk}/",
        "clone": f"/checkpoints/{checkpoint.pk}/clone/",
        "state": f"/checkpoints/{checkpoint.pk}/state/?operator=window&state=state",
        "state-query": f"/state-queries/{StateQuery.objects.get(state='succeeded').pk}/",
        "state-query-running": f"/state-queries/{StateQuery.objects.get(state='running').pk}/",
        "checkpoints": f"/jobs/{job_id}/checkpoints/?slower_than=1s",
        "compare": f"/jobs/{job_id}/checkpoints/compare/?base=203&other=213",
        "retention": f"/jobs/{job_id}/checkpoints/retention/?keep=3",
        "trend": f"/jobs/{job_id}/checkpoints/trend/?days=7",
        "savepoint": f"/jobs/{job_id}/savepoint/",
        "schedule": f"/jobs/{job_id}/checkpoints/schedule/",
        "checkpoint-statistics": f"/jobs/{job_id}/checkpoints/statistics/",
        "cluster": "/cluster/",
        "operations": "/operations/",
        "operation": f"/operations/{operation.pk}/",
        "drain": f"/jobs/{job_id}/drain/",
        "restore": f"/jobs/{job_id}/restore/?checkpoint={checkpoint.pk - 3}",
        "new-job": "/jobs/new/?pipeline=flights",
        "new-version": f"/jobs/{job_id}/versions/new/",
    }


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_every_page_fits_and_nothing_complains(
    signed_in: Open, running: Run, screenshots: Path, width: int, scheme: Scheme
) -> None:
    with signed_in(width, scheme) as page:
        for name, path in others(running.job_id).items():
            response = page.goto(path)
            assert response is not None
            assert response.status == 200
            assert sideways(page) <= 0, f"{name} scrolls sideways at {width} px"
            page.screenshot(path=screenshots / f"{name}-{width}-{scheme}.png", full_page=True)


#: Regions whose content is wider than they are.
CUT_OFF = """() => [...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth + 1)
  .map((e) => `${e.getAttribute('aria-label')}: ${e.scrollWidth} of ${e.clientWidth}`)"""


@pytest.mark.parametrize("width", [1440, 1280, 1024])
def test_nothing_is_cut_off_at_a_desk(signed_in: Open, running: Run, width: int) -> None:
    """A reason, or a part of the graph, that one has to scroll for is not seen."""
    rows.operation(running.job, state="failed", run=running, error={"code": "expired", "message": LATE})
    rows.checkpoint(running, 215, "drain", finished_operators=[f"an-operator-{number}" for number in range(9)])
    with signed_in(width) as page:
        cut_off = {}
        for name, path in others(running.job_id).items():
            page.goto(path)
            page.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
            cut_off[name] = page.evaluate(CUT_OFF)
        assert {name: found for name, found in cut_off.items() if found} == {}


#: Texts of one node that overlap, or that leave the frame of their node, and edge labels that run into a node.
COLLISIONS = """() => {
  const bad = [], box = (e) => e.getBoundingClientRect();
  const meet = (a, b) =>
    a.left < b.right - 0.5 && b.left < a.right - 0.5 && a.top < b.bottom - 3 && b.top < a.bottom - 3;
  const frames = [...document.querySelectorAll('.node .frame')].map(box);
  for (const node of document.querySelectorAll('.node')) {
    const frame = box(node.querySelector('.frame')), texts = [...node.querySelectorAll(':scope > text')];
    texts.forEach((one, at) => {
      if (box(one).right > frame.right || box(one).left < frame.left) bad.push(`leaves its node: ${one.textContent}`);
      for (const other of texts.slice(at + 1))
        if (meet(box(one), box(other))) bad.push(`${one.textContent} / ${other.textContent}`);
    });
  }
  for (const label of document.querySelectorAll('.edge text, .weir text'))
    if (frames.some((frame) => meet(box(label), frame))) bad.push(`runs into a node: ${label.textContent}`);
  return bad;
}"""


@pytest.mark.parametrize("width", [1440, 1024, 390])
def test_texts_of_the_graph_do_not_collide(signed_in: Open, transactional_db: None, width: int) -> None:
    """In the widest of the common fonts, with the longest names and the largest numbers that a node may show."""
    named = [{**one, "name": NAMES.get(one["uid"], one["name"])} for one in rows.GRAPH["operators"]]
    rows.operator_user()
    job = rows.job(version={"graph": {**rows.GRAPH, "operators": named}, "parallelism": 128})
    operators = rows.live()["operators"]
    full = {"records_in": 168_404_999, "records_out": 99_900_000, "rate_in": 999_000.0, "rate_out": 999_000.0}
    operators |= {uid: {**operators[uid], **full, "busy": 0.38, "backpressured": 0.62} for uid in ("prepared", "join")}
    rows.run(job, live=rows.live(operators=operators))
    with signed_in(width) as page:
        page.goto(f"/jobs/{job.pk}/")
        for font in ("DejaVu Sans", "DejaVu Serif", "sans-serif"):
            page.evaluate("(font) => { document.querySelector('svg.graph').style.fontFamily = font; }", font)
            assert page.evaluate(COLLISIONS) == [], font


@pytest.mark.parametrize("width", [1440, 1024])
def test_a_graph_of_30_operators_fits_the_page(signed_in: Open, transactional_db: None, width: int) -> None:
    """S2: compact from 8 operators on, no text collides, all numbers on demand, a node by click or arrow keys."""
    rows.operator_user()
    run = numbers.wide_run()
    loaded = {"state": "running", "records_in": 99_900_000, "records_out": 99_900_000, "rate_in": 999_000.0,
              "rate_out": 999_000.0, "busy": 0.38, "backpressured": 0.62}  # fmt: skip
    Run.objects.filter(pk=run.pk).update(live=rows.live(operators=dict.fromkeys(numbers.UIDS, loaded)))
    with signed_in(width) as page:
        page.goto(f"/jobs/{run.job_id}/")
        region = page.get_by_role("region", name="Picture of the job graph")
        assert region.evaluate("(e) => e.scrollWidth <= e.clientWidth")
        for font in ("DejaVu Sans", "DejaVu Serif", "Liberation Mono", "sans-serif"):
            page.evaluate("(font) => { document.querySelector('svg.graph').style.fontFamily = font; }", font)
            assert page.evaluate(COLLISIONS) == [], font
        page.locator('.node-link[href*="node=sessions"]').focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="basket features")).to_be_visible()
        page.locator("#graph-detailed").click()
        expect(page.locator("svg.graph")).to_contain_text("watermark")


@pytest.mark.parametrize("width", [1440, 390])
def test_controls_have_names_and_headings_do_not_skip(signed_in: Open, running: Run, width: int) -> None:
    with signed_in(width) as page:
        for path in others(running.job_id).values():
            page.goto(path)
            assert page.evaluate(NAMELESS) == []
            levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map((h) => Number(h.tagName[1]))")
            assert levels[0] == 1
            assert levels.count(1) == 1
            assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


#: Form controls without a label, links and buttons without words, ids that occur twice.
NAMELESS = """() => {
  const bad = [];
  for (const e of document.querySelectorAll('input:not([type=hidden]), select, textarea'))
    if (!e.labels?.length && !e.ariaLabel) bad.push(e.outerHTML.slice(0, 80));
  for (const e of document.querySelectorAll('a, button'))
    if (!e.textContent.trim() && !e.ariaLabel) bad.push(e.outerHTML.slice(0, 80));
  const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
  return bad.concat(ids.filter((id, at) => ids.indexOf(id) !== at));
}"""


def test_the_page_follows_the_run_by_itself(signed_in: Open, running: Run) -> None:
    with signed_in() as page:
        page.goto(f"/jobs/{running.job_id}/")
        expect(page.locator("svg.graph")).to_contain_text("checkpoint 214, 5 of 10 acknowledged")
        Run.objects.filter(pk=running.pk).update(live=rows.live(acknowledged=7))
        expect(page.locator("svg.graph")).to_contain_text("7 of 10 acknowledged", timeout=POLL_MS)
        Run.objects.filter(pk=running.pk).update(state="draining")
        expect(page.locator("#live-head")).to_contain_text("Draining", timeout=POLL_MS)
        expect(page.get_by_role("button", name="Take savepoint")).to_be_disabled()


def test_a_query_of_state_becomes_its_table_by_itself(signed_in: Open, running: Run) -> None:
    query = StateQuery.objects.get(state="running")
    with signed_in() as page:
        page.goto(f"/state-queries/{query.pk}/")
        expect(page.locator("#live-query")).to_contain_text("3 of 8 Spark tasks")
        StateQuery.objects.filter(pk=query.pk).update(state="succeeded", result=rows.TABLE, ended_at=query.created_at)
        expect(page.get_by_role("heading", name="40 rows")).to_be_visible(timeout=POLL_MS)
        page.get_by_role("button", name="Next page").click()
        expect(page.locator("#live-query")).to_contain_text("waits for a worker")
        asked = StateQuery.objects.latest("pk").request
        assert (asked["cursor"], asked["key"]) == ({"group": 19, "skip": 2}, {"name": "American"})
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator("#live-query")).to_contain_text("Canceled")


def test_polling_ends_when_the_run_has_ended(signed_in: Open, running: Run) -> None:
    with signed_in() as page:
        page.goto(f"/jobs/{running.job_id}/")
        with page.expect_response(lambda r: r.status == 286, timeout=POLL_MS):
            Run.objects.filter(pk=running.pk).update(state="finished")
        expect(page.locator("#live-head")).to_contain_text("Finished")
        polls: list[str] = []
        page.on("request", lambda request: polls.append(request.url))
        page.wait_for_timeout(QUIET_MS)
        assert polls == []


def test_what_has_not_changed_keeps_focus_and_what_is_open_stays_open(signed_in: Open, running: Run) -> None:
    with signed_in() as page:
        page.goto(f"/jobs/{running.job_id}/")
        page.get_by_text("Operators as a table").click()
        page.locator("#do-stop").focus()
        Run.objects.filter(pk=running.pk).update(live=rows.live(acknowledged=7))
        expect(page.locator("svg.graph")).to_contain_text("7 of 10", timeout=POLL_MS)
        assert page.evaluate("document.activeElement.id") == "do-stop"
        expect(page.get_by_role("region", name="Table of operators")).to_be_visible()


def test_a_focused_link_of_a_table_keeps_focus_when_its_table_changes(signed_in: Open, running: Run) -> None:
    with signed_in() as page:
        page.goto(f"/jobs/{running.job_id}/")
        chosen = f"ck-{Checkpoint.objects.get(number=212).pk}"
        page.locator(f"#{chosen}").focus()
        rows.checkpoint(running, 215)
        expect(page.locator("#live-checkpoints")).to_contain_text("215", timeout=POLL_MS)
        assert page.evaluate("document.activeElement.id") == chosen


def test_a_wide_graph_stays_where_it_was_scrolled_to(signed_in: Open, running: Run) -> None:
    with signed_in(390) as page:
        page.goto(f"/jobs/{running.job_id}/")
        region = page.get_by_role("region", name="Picture of the job graph")
        region.evaluate("(element) => { element.scrollLeft = 400 }")
        Run.objects.filter(pk=running.pk).update(live=rows.live(acknowledged=7))
        expect(page.locator("svg.graph")).to_contain_text("7 of 10", timeout=POLL_MS)
        assert region.evaluate("(element) => element.scrollLeft") == 400


def test_the_cursor_reads_all_plots_and_a_brush_limits_the_checkpoints(signed_in: Open, running: Run) -> None:
    """By mouse and by keys; without scripts the parts of the time axis are links."""
    numbers.record(running, timezone.now(), hours=1, fine_minutes=15)
    shown = rows.checkpoint(running, 100, triggered_at=timezone.now() - timedelta(minutes=8), is_stored=False)
    with signed_in() as page:
        page.goto(f"/jobs/{running.job_id}/")
        outputs = page.locator(".plot-legend output")
        newest = outputs.all_text_contents()
        plot = page.locator(".plot.records")
        size = plot.bounding_box()
        assert size is not None
        plot.hover(position={"x": size["width"] * 0.7, "y": 30})
        assert outputs.all_text_contents() != newest, "the numbers of the backpressure episode"
        page.locator(".heat").hover(position={"x": size["width"] * 0.7, "y": 15})
        expect(page.locator("[data-heat]")).to_contain_text("prepared: busy")
        page.keyboard.press("Escape")
        plot.hover(position={"x": size["width"] * 0.4, "y": 30})
        page.mouse.down()
        plot.hover(position={"x": size["width"] * 0.55, "y": 30})
        page.mouse.up()
        page.wait_for_url("**from=**")
        expect(page.locator("#live-checkpoints tbody tr")).to_have_count(1)
        expect(page.locator(f"#ck-{shown.pk}")).to_be_visible()
        page.locator(".timeline").focus()
        for key in ("ArrowLeft", "Shift+ArrowLeft", "Shift+ArrowLeft", "Shift+ArrowLeft"):
            page.keyboard.press(key)
        expect(page.locator("[data-announce]")).to_contain_text("read by sources")
        page.keyboard.press("Enter")
        expect(page.locator(f"#ck-{shown.pk}")).to_be_hidden()
    with signed_in(java_script_enabled=False) as page:
        page.goto(f"/jobs/{running.job_id}/")
        page.locator("#tick-2").click()
        expect(page.get_by_role("link", name="show all")).to_be_visible()


def test_an_operator_is_chosen_by_arrow_keys(signed_in: Open, running: Run) -> None:
    """The graph is one tab stop. Without scripts each node is a link."""
    with signed_in(1024) as page:
        page.goto(f"/jobs/{running.job_id}/")
        assert page.locator('.node-link[tabindex="0"]').count() == 1
        page.locator("#node-1").focus()
        for key in ("ArrowRight", "ArrowRight", "ArrowRight"):
            page.keyboard.press(key)
        page.keyboard.press("Enter")
        page.wait_for_url("**node=window**")
        expect(page.get_by_role("heading", name="window 1 day")).to_be_visible()
    with signed_in(java_script_enabled=False) as page:
        page.goto(f"/jobs/{running.job_id}/")
        page.locator("#node-6").click()
        expect(page.get_by_role("heading", name="parquet")).to_be_visible()


def test_a_hidden_page_does_not_poll(signed_in: Open, running: Run) -> None:
    with signed_in() as page:
        page.add_init_script("Object.defineProperty(document, 'hidden', {get: () => window.away === true})")
        page.goto(f"/jobs/{running.job_id}/")
        with page.expect_response(lambda r: r.request.headers.get("hx-request") == "true", timeout=POLL_MS):
            pass
        page.evaluate("window.away = true")
        page.wait_for_timeout(500)
        polls: list[str] = []
        page.on("request", lambda request: polls.append(request.url))
        page.wait_for_timeout(QUIET_MS)
        assert polls == []
        with page.expect_response(lambda r: r.ok or r.status == 304, timeout=1_500):  # nothing was written meanwhile
            page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")


def test_a_lost_console_is_said_and_old_numbers_grow_old(signed_in: Open, running: Run) -> None:
    with signed_in(forgive="503") as page:
        page.goto(f"/jobs/{running.job_id}/")
        page.route("**/jobs/**", lambda route: route.fulfill(status=503, body="away"))
        expect(page.locator("#lost")).to_contain_text("The console answered with an error (503)", timeout=POLL_MS)
        expect(page.locator("#lost")).to_be_visible()
        expect(page.locator("#live-asof time.stale")).to_be_visible(timeout=20_000)
        page.unroute("**/jobs/**")
        expect(page.locator("#lost")).to_be_hidden(timeout=POLL_MS)


def test_a_tab_that_was_signed_out_says_so(signed_in: Open, running: Run) -> None:
    with signed_in(forgive="401") as page:
        page.goto(f"/jobs/{running.job_id}/")
        page.context.clear_cookies()
        expect(page.locator("#lost")).to_contain_text("You are signed out.", timeout=POLL_MS)
        expect(page.locator("#lost")).to_be_visible()


def test_the_colours_change_without_a_reload_and_are_kept(signed_in: Open, running: Run) -> None:
    with signed_in(scheme="light") as page:
        page.goto("/jobs/")
        page.evaluate("window.same = true")
        day = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.get_by_role("button", name="Dark").click()
        night = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert day != night
        assert page.evaluate("window.same") is True
        expect(page.get_by_role("button", name="Dark")).to_have_attribute("aria-pressed", "true")
        page.reload()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == night


def test_clocks_tick_in_the_words_of_the_server(signed_in: Open, running: Run) -> None:
    cases = [0, 1, 59, 60, 61, 3599, 3600, 11_520, 86_400, 187_200]
    with signed_in() as page:
        page.goto("/jobs/")
        source = page.locator("script[src*=weir\\.js], script[src*=weir\\/weir]").get_attribute("src")
        found = page.evaluate("([s, l]) => import(s).then((m) => l.map(m.lasting))", [source, cases])
    now = datetime(2026, 3, 1, tzinfo=UTC)
    assert found == [formats.since(now - timedelta(seconds=seconds), now) for seconds in cases]


def test_a_person_takes_a_savepoint_and_drains(signed_in: Open, running: Run) -> None:
    with signed_in() as page:
        page.goto(f"/jobs/{running.job_id}/")
        page.get_by_role("button", name="Take savepoint").click()
        expect(page.locator("#live-notices")).to_contain_text("Savepoint queued")
        page.get_by_role("link", name="Drain and finish…").click()
        expect(page.get_by_text("fires early")).to_be_visible()
        page.get_by_label("Reason").fill("The year is over.")
        page.get_by_role("button", name="Drain and finish").click()
        expect(page.locator("#live-notices")).to_contain_text("Drain queued")
        expect(page.locator("#live-head")).to_contain_text("desired state: finished")
        assert Operation.objects.get(kind="drain").reason == "The year is over."


def test_a_checkpoint_is_named_pinned_and_compared(signed_in: Open, running: Run) -> None:
    with signed_in() as page:
        page.goto(f"/jobs/{running.job_id}/checkpoints/?number=213")
        page.get_by_label("Name optional").fill("before the upgrade")
        page.get_by_role("button", name="Save name and note").click()
        expect(page.get_by_role("heading", name="Checkpoint 213: before the upgrade")).to_be_visible()
        page.get_by_role("button", name="Pin", exact=True).click()
        expect(page.get_by_text("Pinned by operator")).to_be_visible()
        page.get_by_role("link", name="Compare with 212").click()
        expect(page.locator("#explanation")).to_contain_text("than checkpoint 212")
        page.get_by_role("link", name="List").click()
        page.get_by_role("row", name="before the upgrade").get_by_role("link", name="Compare").click()
        page.get_by_role("link", name="With 213").last.click()
        expect(page.get_by_role("heading", name="Checkpoint 213 compared with 165")).to_be_visible()


def test_a_form_whose_answer_was_lost_can_be_sent_again(signed_in: Open, running: Run) -> None:
    def lose(route: Route) -> None:
        route.fetch(max_redirects=0)
        route.abort("aborted")

    with signed_in() as page:
        page.goto(f"/jobs/{running.job_id}/versions/new/")
        page.route("**/versions/new/", lose, times=1)
        page.get_by_role("button", name="Create version").click()
        page.get_by_role("button", name="Create version").click()
        expect(page.get_by_text("This form has already created version 2 of flights-delays.")).to_be_visible()
    assert running.job.versions.count() == 2


def test_the_plan_of_a_restore_follows_the_choice(signed_in: Open, running: Run) -> None:
    Run.objects.filter(pk=running.pk).update(state="stopped")
    with signed_in() as page:
        page.goto(f"/jobs/{running.job_id}/restore/")
        page.get_by_label("Checkpoint 210").check()
        expect(page.locator("#plan")).to_contain_text("Output is repeated.")
        page.get_by_label("Parallelism").fill("500")
        page.get_by_label("Parallelism").press("Tab")
        expect(page.locator("#id_parallelism:invalid")).to_be_visible()
        expect(page.get_by_role("button", name="Restore checkpoint 210 at parallelism 2")).to_be_visible()
        page.get_by_label("Parallelism").fill("3")
        page.get_by_label("Parallelism").press("Tab")
        expect(page.get_by_role("button", name="Restore checkpoint 210 at parallelism 3")).to_be_enabled()
        page.get_by_label("I accept repeated output.").check()
        page.get_by_role("button", name="Restore checkpoint 210 at parallelism 3").click()
        expect(page.get_by_text("The restore was requested.")).to_be_visible()
    assert Operation.objects.get(kind="restore").params["parallelism"] == 3


def test_everything_works_without_scripts(signed_in: Open, running: Run) -> None:
    with signed_in(java_script_enabled=False) as page:
        page.goto(f"/jobs/{running.job_id}/")
        page.get_by_role("button", name="Take savepoint").click()
        expect(page.get_by_text("A savepoint was requested.")).to_be_visible()
        page.get_by_role("link", name="Stop with savepoint…").click()
        page.get_by_role("button", name="Stop with savepoint").click()
        expect(page.get_by_text("The stop with savepoint was requested.")).to_be_visible()
        page.get_by_role("button", name="Dark").click()
        expect(page.locator("html[data-theme=dark]")).to_be_attached()
        page.goto(f"/jobs/{running.job_id}/restore/")
        page.get_by_label("Checkpoint 210").check()
        page.get_by_role("button", name="Show what will happen").click()
        expect(page.get_by_text("Output is repeated.")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_the_keyboard_reaches_the_content_first_and_sees_where_it_is(signed_in: Open, running: Run) -> None:
    with signed_in() as page:
        page.goto(f"/jobs/{running.job_id}/")
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
        assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
        for name in ("Take savepoint", "Stop with savepoint…"):
            page.get_by_text(name, exact=True).focus()
            page.keyboard.press("Shift+Tab")
            page.keyboard.press("Tab")
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
