"""Behaviour of the pages in a real Chromium, with and without scripts, under a strict content security policy."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Route, expect

from console import formats
from console.checkpoints.models import Checkpoint, StateQuery
from console.jobs.models import Job, JobVersion, Pipeline, Run
from console.operations.models import Operation
from tests.console.ui import numbers, rows
from tests.console.ui.browsing import ARRIVAL_MS, POLL_MS, Open, jump
from tests.console.ui.test_every_page import CUT_OFF

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

NAMES = {"prepared": "windows_by_carrier_and_origin", "window": "WWWWWWWWWWWW"}

#: Texts of one node that overlap, or that leave the frame of their node, edge labels that run into a node, and labels
#: that the line of the checkpoint crosses.
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
  const weir = document.querySelector('.weir line');
  for (const label of weir ? document.querySelectorAll('.edge text') : [])
    if (meet(box(label), {...box(weir).toJSON(), right: box(weir).right + 6})) bad.push(`crossed: ${label.innerHTML}`);
  return bad;
}"""


def test_texts_of_the_graph_do_not_collide(signed_in: Open, transactional_db: None) -> None:
    """In the widest of the common fonts, with the longest names and the largest numbers that a node may show."""
    nodes = [{**node, "name": NAMES.get(node["uid"], node["name"])} for node in rows.GRAPH["operators"]]
    rows.operator_user()
    job = rows.job(version={"graph": {**rows.GRAPH, "operators": nodes}, "parallelism": 128})
    operators = rows.live()["operators"]
    full = {"records_in": 168_404_999, "records_out": 99_900_000, "rate_in": 999_000.0, "rate_out": 999_000.0}
    operators |= {uid: {**operators[uid], **full, "busy": 0.38, "backpressured": 0.62} for uid in ("prepared", "join")}
    run = rows.run(job, live=rows.live(4, operators=operators))
    numbers.backpressure(run, "window", ("flights", "prepared", "join"), timezone.now())
    for width in (1440, 1024, 390):
        with signed_in(width) as page:
            page.goto(f"/jobs/{job.pk}/")
            expect(page.locator("svg.graph .node .mark")).to_have_count(4)
            for font in ("DejaVu Sans", "DejaVu Serif", "sans-serif"):
                page.evaluate(
                    "(f) => { for (const e of document.querySelectorAll('.graph')) e.style.fontFamily = f; }", font
                )
                assert page.evaluate(COLLISIONS) == [], font


def test_a_graph_of_30_operators_fits_the_page(signed_in: Open, transactional_db: None) -> None:
    """S2: compact from 8 operators on, no text collides, all numbers on demand, a node by click or arrow keys."""
    rows.operator_user()
    run = numbers.wide_run()
    loaded = {"state": "running", "records_in": 99_900_000, "records_out": 99_900_000, "rate_in": 999_000.0,
              "rate_out": 999_000.0, "busy": 0.38, "backpressured": 0.62}  # fmt: skip
    Run.objects.filter(pk=run.pk).update(live=rows.live(operators=dict.fromkeys(numbers.UIDS, loaded)))
    numbers.backpressure(run, "model-score", ("sessions", "basket-features"), timezone.now())
    for width in (1440, 1024):
        with signed_in(width) as page:
            page.goto(f"/jobs/{run.job_id}/")
            region = page.get_by_role("region", name="Picture of the job graph")
            expect(region.locator(".node .mark")).to_have_count(3)
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


def test_the_tables_of_an_operator_are_whole_and_lines_stand_in_their_rows(
    signed_in: Open, transactional_db: None
) -> None:
    """At 1440 px, its column was narrower than the table. The line of a subtask stood on the row above."""
    rows.operator_user()
    run = numbers.run_with_story("flights", "running", 214)
    for width in (1440, 1024):
        with signed_in(width) as page:
            page.goto(f"/jobs/{run.job_id}/?node=window")
            region = page.get_by_role("region", name="Subtasks of sessions")
            for table in (region, page.get_by_role("region", name="State by size")):
                assert table.evaluate("(e) => e.scrollWidth <= e.clientWidth")
            for line in region.locator("tbody tr").all():
                row, spark = line.bounding_box(), line.locator(".spark").bounding_box()
                assert row is not None
                assert spark is not None
                assert row["y"] <= spark["y"]
                assert spark["y"] + spark["height"] <= row["y"] + row["height"]


def test_the_page_follows_the_run_by_itself(signed_in: Open, running: Run) -> None:
    with signed_in() as page:
        page.clock.install()
        page.goto(f"/jobs/{running.job_id}/")
        expect(page.locator("svg.graph")).to_contain_text("checkpoint 214, 6 of 10 acknowledged")
        Run.objects.filter(pk=running.pk).update(live=rows.live(acknowledged=7))
        expect(page.locator("svg.graph")).to_contain_text("7 of 10 acknowledged", timeout=POLL_MS)
        Run.objects.filter(pk=running.pk).update(state="draining")
        jump(page)
        expect(page.locator("#live-head")).to_contain_text("Draining", timeout=POLL_MS)
        expect(page.get_by_role("button", name="Take savepoint")).to_be_disabled()
        expect(page.get_by_text("The run is draining")).to_be_visible()


def test_a_query_of_state_becomes_its_table_by_itself(signed_in: Open, running: Run) -> None:
    query = StateQuery.objects.get(state="running")
    with signed_in() as page:
        page.clock.install()
        page.goto(f"/state-queries/{query.pk}/")
        expect(page.locator("#live-query")).to_contain_text("3 of 8 Spark tasks")
        cut = {**rows.table(rows.JUNE_2013_MS), "is_cut": True, "cursor": {"group": 19, "skip": 2}}
        StateQuery.objects.filter(pk=query.pk).update(state="succeeded", result=cut, ended_at=query.created_at)
        jump(page)
        expect(page.get_by_role("heading", name="40 rows")).to_be_visible(timeout=POLL_MS)
        page.get_by_role("button", name="Next page").click()
        expect(page.locator("#live-query")).to_contain_text("waits for a worker")
        request = StateQuery.objects.latest("pk").request
        assert (request["cursor"], request["key"]) == ({"group": 19, "skip": 2}, {"carrier": rows.CARRIER})
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator("#live-query")).to_contain_text("Canceled")


def test_the_page_of_an_ended_job_shows_the_run_that_another_user_starts(signed_in: Open, running: Run) -> None:
    """The page stopped for good while its ages ticked, so it looked alive."""
    Run.objects.filter(pk=running.pk).update(state="finished")
    with signed_in() as page:
        page.clock.install()
        page.goto(f"/jobs/{running.job_id}/")
        expect(page.locator("#live-head")).to_contain_text("Finished")
        jump(page)
        Run.objects.filter(pk=running.pk).update(state="running")
        jump(page)
        expect(page.locator("#live-head")).to_contain_text("Running", timeout=POLL_MS)


def test_texts_keep_a_distance_from_buttons_and_edges(signed_in: Open, running: Run) -> None:
    """Where there are no jobs, and where there is no log."""
    gap = "([above, below]) => below.getBoundingClientRect().top - above.getBoundingClientRect().bottom"
    inset = "([outer, inner]) => inner.getBoundingClientRect().left - outer.getBoundingClientRect().left"
    with signed_in() as page:
        page.goto(f"/runs/{running.pk}/")
        log = page.locator(".log")
        text = log.get_by_text("This host does not have the log.").evaluate_handle(
            "(p) => { const range = new Range(); range.selectNodeContents(p); return range; }"
        )
        assert page.evaluate(inset, [log.element_handle(), text]) >= 8
        Job.objects.all().update(archived_at=timezone.now())
        page.goto("/jobs/")
        button, example = page.locator("#first-job"), page.get_by_text("To see an example")
        assert page.evaluate(gap, [button.element_handle(), example.element_handle()]) >= 8


def test_the_page_of_a_job_that_never_ran_shows_its_first_run(signed_in: Open, transactional_db: None) -> None:
    rows.operator_user()
    job = rows.job("flights-new")
    with signed_in() as page:
        page.clock.install()
        page.goto(f"/jobs/{job.pk}/")
        expect(page.get_by_role("heading", name="Slots and counters")).to_be_hidden()
        missing: list[str] = []
        page.expose_function("onMissing", lambda kind: missing.append(kind))  # noqa: PLW0108 - no built-in
        page.evaluate("document.addEventListener('htmx:oobErrorNoTarget', (event) => onMissing(event.type))")
        rows.run(job, "running", live=rows.live())
        jump(page)
        expect(page.get_by_role("heading", name="Slots and counters")).to_be_visible(timeout=POLL_MS)
        assert missing == []


def test_what_has_not_changed_keeps_focus_and_what_is_open_stays_open(signed_in: Open, running: Run) -> None:
    with signed_in() as page:
        page.clock.install()
        page.goto(f"/jobs/{running.job_id}/")
        page.get_by_text("Operators as a table").click()
        page.locator("#do-stop").focus()
        Run.objects.filter(pk=running.pk).update(live=rows.live(acknowledged=7))
        jump(page)
        expect(page.locator("svg.graph")).to_contain_text("7 of 10", timeout=POLL_MS)
        assert page.evaluate("document.activeElement.id") == "do-stop"
        expect(page.get_by_role("region", name="Table of operators")).to_be_visible()


def test_a_focused_link_of_a_table_keeps_focus_when_its_table_changes(signed_in: Open, running: Run) -> None:
    with signed_in() as page:
        page.clock.install()
        page.goto(f"/jobs/{running.job_id}/")
        link = f"ck-{Checkpoint.objects.get(number=212).pk}"
        page.locator(f"#{link}").focus()
        rows.checkpoint(running, 215)
        jump(page)
        expect(page.locator("#live-checkpoints")).to_contain_text("215", timeout=POLL_MS)
        assert page.evaluate("document.activeElement.id") == link


def test_a_wide_graph_stays_where_it_was_scrolled_to(signed_in: Open, running: Run) -> None:
    with signed_in(390) as page:
        page.clock.install()
        page.goto(f"/jobs/{running.job_id}/?graph=detailed")
        region = page.get_by_role("region", name="Picture of the job graph")
        region.evaluate("(element) => { element.scrollLeft = 400 }")
        Run.objects.filter(pk=running.pk).update(live=rows.live(acknowledged=7))
        jump(page)
        expect(page.locator("svg.graph")).to_contain_text("7 of 10", timeout=POLL_MS)
        assert region.evaluate("(element) => element.scrollLeft") == 400


@pytest.mark.parametrize("scripts", [True, False])
def test_rows_of_a_list_are_added_and_removed(signed_in: Open, transactional_db: None, scripts: bool) -> None:
    """With scripts by buttons; without, blank rows add and emptied rows remove."""
    rows.operator_user()
    parts = {"regions": {"type": "array", "items": {"type": "string"}}}
    Pipeline.objects.create(name="regional", schema={"type": "object", "properties": parts})
    with signed_in(java_script_enabled=scripts) as page:
        page.goto("/jobs/new/?pipeline=regional")
        page.get_by_label("Name", exact=True).fill("regions")
        page.get_by_label("Regions, value of row 1").fill("eu")
        if scripts:
            expect(page.get_by_label("Regions, value of row 2")).to_have_count(0)
            page.get_by_role("button", name="Add a row to Regions").click()
            expect(page.get_by_label("Regions, value of row 2")).to_be_focused()
            page.keyboard.type("us")
            page.get_by_role("button", name="Add a row to Regions").click()
            page.keyboard.type("asia")
            page.get_by_role("button", name="Remove row 2 of Regions").click()
            expect(page.get_by_label("Regions, value of row 2")).to_have_value("asia")
        else:
            page.get_by_label("Regions, value of row 3").fill("asia")
        page.get_by_role("button", name="Define job").click()
        expect(page.get_by_role("heading", name="regions")).to_be_visible()
    assert JobVersion.objects.get().params == {"regions": ["eu", "asia"]}


def test_tables_of_a_restore_are_not_cut_off_on_a_phone(signed_in: Open, running: Run) -> None:
    rows.checkpoint(running, 215, "drain")
    with signed_in(390) as page:
        page.goto(f"/jobs/{running.job_id}/restore/?checkpoint={Checkpoint.objects.get(number=215).pk}")
        expect(page.get_by_role("region", name="Drained savepoints")).to_contain_text("windows fired early")
        for region in page.locator(".scroll").all():
            assert region.evaluate("(element) => element.scrollWidth <= element.clientWidth")


def test_tables_are_stacked_on_a_phone(signed_in: Open, running: Run) -> None:
    """Rows of attempts, slots, runs, checkpoints and jobs: each cell has the name of its column."""
    checkpoint = rows.checkpoint(running, 215)
    job = f"/jobs/{running.job_id}/"
    with signed_in(390) as page:
        for path in ("/jobs/", job, f"{job}checkpoints/", f"/runs/{running.pk}/", f"/checkpoints/{checkpoint.pk}/"):
            page.goto(path)
            tables = page.locator(".scroll:has(> * > .stacked), .scroll:has(> .stacked)").all()
            assert tables, path
            for region in tables:
                assert region.evaluate("(element) => element.scrollWidth <= element.clientWidth"), region
            unnamed = page.locator(".stacked tbody td:not([data-label]):not([colspan]):not(:empty)")
            assert unnamed.count() == 0, path


def test_the_graph_begins_with_the_slow_operator_or_with_the_chosen_one(
    signed_in: Open, transactional_db: None
) -> None:
    rows.operator_user()
    slow = numbers.slow_run()
    for width in (390, 1440):
        with signed_in(width) as page:
            for query, uid in (("", "join"), ("&node=parquet", "parquet")):
                page.goto(f"/jobs/{slow.job_id}/?graph=detailed{query}")
                box = page.locator(f'.node-link[href*="node={uid}#"]').bounding_box()
                region = page.get_by_role("region", name="Picture of the job graph").bounding_box()
                assert box
                assert region
                assert region["x"] <= box["x"]
                assert box["x"] + box["width"] <= region["x"] + region["width"]
                assert page.evaluate("window.scrollY") == 0


def test_a_phone_has_no_hint_to_hover_and_no_labels_that_collide(signed_in: Open, running: Run) -> None:
    checkpoint = rows.checkpoint(running, 215)
    with signed_in(390, has_touch=True, is_mobile=True) as page:
        page.goto(f"/checkpoints/{checkpoint.pk}/")
        expect(page.get_by_text("Hover over a time")).to_be_hidden()
        labels = [label.bounding_box() for label in page.locator(".gantt thead text").all() if label.is_visible()]
        assert len(labels) == 2
        first, last = labels
        assert first
        assert last
        assert first["x"] + first["width"] < last["x"]


def test_the_cursor_reads_all_plots_and_a_brush_limits_the_checkpoints(signed_in: Open, running: Run) -> None:
    """By mouse and by keys; without scripts the parts of the time axis are links."""
    numbers.record(running, hours=1, fine_minutes=15)
    checkpoint = rows.checkpoint(running, 100, triggered_at=timezone.now() - timedelta(minutes=12), is_stored=False)
    with signed_in() as page:
        page.goto(f"/jobs/{running.job_id}/")
        outputs = page.locator(".plot-legend output")
        newest = outputs.all_text_contents()
        plot = page.locator(".plot.records")
        size = plot.bounding_box()
        assert size is not None
        plot.hover(position={"x": size["width"] * 0.5, "y": 30})
        assert outputs.all_text_contents() != newest, "the numbers of the backpressure episode"
        page.locator(".heat").hover(position={"x": size["width"] * 0.5, "y": 15})
        expect(page.locator("[data-heat]")).to_contain_text("prepared: busy")
        page.keyboard.press("Escape")
        plot.hover(position={"x": size["width"] * 0.12, "y": 30})
        page.mouse.down()
        plot.hover(position={"x": size["width"] * 0.28, "y": 30})
        page.mouse.up()
        page.wait_for_url("**from=**")
        expect(page.locator("#live-checkpoints tbody tr")).to_have_count(1)
        expect(page.locator(f"#ck-{checkpoint.pk}")).to_be_visible()
        page.locator(".timeline").focus()
        for key in ("ArrowLeft", "Shift+ArrowLeft", "Shift+ArrowLeft", "Shift+ArrowLeft"):
            page.keyboard.press(key)
        expect(page.locator("[data-announce]")).to_contain_text("read by sources")
        page.keyboard.press("Enter")
        expect(page.locator(f"#ck-{checkpoint.pk}")).to_be_hidden()
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
        expect(page.get_by_role("heading", name="sessions")).to_be_visible()
    with signed_in(java_script_enabled=False) as page:
        page.goto(f"/jobs/{running.job_id}/")
        page.locator("#node-6").click()
        expect(page.get_by_role("heading", name="parquet")).to_be_visible()


def test_a_hidden_page_does_not_poll(signed_in: Open, running: Run) -> None:
    with signed_in() as page:
        page.add_init_script("Object.defineProperty(document, 'hidden', {get: () => window.away === true})")
        page.clock.install()
        page.goto(f"/jobs/{running.job_id}/")
        with page.expect_response(lambda r: r.request.headers.get("hx-request") == "true", timeout=POLL_MS):
            jump(page)
        page.evaluate("window.away = true")
        page.wait_for_timeout(500)
        polls: list[str] = []
        page.on("request", lambda request: polls.append(request.url))
        jump(page)
        page.wait_for_timeout(ARRIVAL_MS)
        assert polls == []
        with page.expect_response(lambda r: r.ok or r.status == 304, timeout=1_500):  # nothing was written meanwhile
            page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")


def test_a_page_asks_at_the_pace_of_the_console_and_never_later(signed_in: Open, running: Run) -> None:
    """Polls of a quiet page rested for 10 s, and of a slow console for 20 s."""
    with signed_in() as page:
        page.clock.install()
        page.goto(f"/jobs/{running.job_id}/")
        pauses = page.evaluate(
            "() => import('/static/weir/polling.js').then((m) => [0, 0.5, 1].map((chance) => m.pause(4_000, chance)))"
        )
        assert pauses == [4_000, 3_500, 3_000]
        retries = page.evaluate(
            "() => import('/static/weir/polling.js').then((m) => [1, 2, 3, 4, 40].map((failures) => m.retry(failures)))"
        )
        assert retries == [4_000, 8_000, 16_000, 20_000, 20_000]
        page.route(
            f"**/jobs/{running.job_id}/", lambda route: route.fulfill(status=304, headers={"X-Poll-After": "3000"})
        )
        for _ in range(6):  # however long nothing changes
            with page.expect_response(lambda r: r.status == 304, timeout=5_000):
                page.clock.fast_forward(4_000)
            page.wait_for_timeout(100)
            polls: list[str] = []
            page.on("request", lambda request, polls=polls: polls.append(request.url))
            page.clock.run_for(2_000)
            assert polls == [], "three quarters of 3 s have not passed"


def test_as_of_stands_beside_the_head_and_a_page_that_does_not_update_is_red(signed_in: Open, running: Run) -> None:
    with signed_in() as page:
        page.clock.install()
        page.goto(f"/jobs/{running.job_id}/")
        as_of = page.locator("#as-of")
        expect(as_of).to_have_text(re.compile("as of (now|1 s ago)"))
        head, mark = page.locator("h1").bounding_box(), as_of.bounding_box()
        assert head
        assert mark
        assert mark["y"] < head["y"] + head["height"]
        page.route(f"**/jobs/{running.job_id}/", lambda route: None)  # no answer, and no error yet
        page.clock.run_for(9_000)
        expect(as_of).to_have_text(re.compile(r"as of \d+ s ago"))
        expect(page.locator("#lost")).to_be_hidden()
        page.clock.run_for(8_000)
        expect(page.locator("#lost")).to_contain_text(re.compile(r"does not answer|has not been updated for 1\d s"))
        red = page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--failed').trim()")
        assert red
        assert as_of.evaluate("(e) => e.classList.contains('failed')")
        assert page.locator("#lost").evaluate("(e) => e.classList.contains('failed')")
        page.unroute(f"**/jobs/{running.job_id}/")
        with page.expect_response(lambda r: r.ok or r.status == 304, timeout=10_000):
            page.clock.run_for(14_000)
        expect(page.locator("#lost")).to_be_hidden()
        expect(as_of).not_to_have_class(re.compile("failed"))


def test_a_lost_console_is_said_and_old_numbers_grow_old(signed_in: Open, running: Run) -> None:
    with signed_in(forgive="503") as page:
        page.clock.install()
        page.goto(f"/jobs/{running.job_id}/")
        page.route("**/jobs/**", lambda route: route.fulfill(status=503, body="away"))
        jump(page)
        expect(page.locator("#lost")).to_contain_text("The console answered with an error (503)", timeout=POLL_MS)
        expect(page.locator("#lost")).to_be_visible()
        expect(page.locator("#live-asof time.stale")).to_be_visible(timeout=20_000)
        page.unroute("**/jobs/**")
        jump(page)
        expect(page.locator("#lost")).to_be_hidden(timeout=POLL_MS)


def test_a_tab_that_was_signed_out_says_so(signed_in: Open, running: Run) -> None:
    with signed_in(forgive="401") as page:
        page.clock.install()
        page.goto(f"/jobs/{running.job_id}/")
        page.context.clear_cookies()
        jump(page)
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


def test_absolute_times_fit_and_do_not_tick(signed_in: Open, running: Run) -> None:
    with signed_in(1024) as page:
        page.clock.install()
        page.goto("/jobs/")
        page.get_by_role("button", name="UTC", exact=True).click()
        expect(page.get_by_role("button", name="UTC", exact=True)).to_have_attribute("aria-pressed", "true")
        for path in ("/jobs/", f"/jobs/{running.job_id}/", "/operations/", f"/jobs/{running.job_id}/checkpoints/"):
            page.goto(path)
            assert page.evaluate(CUT_OFF) == []
        time = page.locator("tbody time:not([data-tick])").first
        text = time.text_content()
        page.clock.run_for(5_000)
        assert time.text_content() == text


def test_the_zone_of_the_browser_and_any_other_zone_can_be_chosen(signed_in: Open, running: Run) -> None:
    def pressed() -> str:
        choice = page.locator("#zone-choice [aria-pressed=true]")
        expect(choice).to_have_count(1)
        return str(choice.text_content())

    with signed_in(timezone_id="America/Lima") as page:
        page.goto("/operations/")
        assert pressed() == "Relative"
        page.get_by_role("button", name="America/Lima").click()
        expect(page.locator("tbody time.zoned").first).to_contain_text("-05")
        assert pressed() == "America/Lima"
        page.get_by_text("Other zone").click()
        page.get_by_label("Name of the zone").fill("Asia/Tokyo")
        page.get_by_role("button", name="Show times of the zone").click()
        expect(page.locator("tbody time.zoned").first).to_contain_text("JST")
        assert pressed() == "Asia/Tokyo"
        page.get_by_role("button", name="Relative").click()
        expect(page.locator("tbody time.zoned")).to_have_count(0)


def test_clocks_tick_in_the_words_of_the_server(signed_in: Open, running: Run) -> None:
    cases = [0, 1, 59, 60, 61, 3599, 3600, 11_520, 86_400, 187_200]
    with signed_in() as page:
        page.goto("/jobs/")
        source = page.locator("script[src*=weir\\.js], script[src*=weir\\/weir]").get_attribute("src")
        texts = page.evaluate("([s, l]) => import(s).then((m) => l.map(m.lasting))", [source, cases])
    now = datetime(2026, 3, 1, tzinfo=UTC)
    assert texts == [formats.since(now - timedelta(seconds=seconds), now) for seconds in cases]


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
        expect(page.get_by_role("button", name="Restore checkpoint 210 at parallelism 3")).to_be_visible()
        page.get_by_label("I accept repeated output.").check()
        page.get_by_role("button", name="Restore checkpoint 210 at parallelism 3").click()
        expect(page.get_by_text("The restore was requested.")).to_be_visible()
    assert Operation.objects.get(kind="restore").params["parallelism"] == 3


def test_everything_works_without_scripts(signed_in: Open, running: Run) -> None:
    with signed_in(java_script_enabled=False) as page:
        page.goto(f"/jobs/{running.job_id}/")
        page.locator("#more-acts summary").press("Enter")
        expect(page.get_by_role("button", name="Restore")).to_be_disabled()
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


#: Left and right of the visible part of the graph, as shares of its width: of the picture, and of the overview's frame.
VISIBLE = """() => {
  const region = document.getElementById('graph-region').getBoundingClientRect();
  const graph = document.querySelector('svg.graph').getBoundingClientRect();
  const seen = document.querySelector('.seen'), small = document.querySelector('#graph-overview svg').viewBox.baseVal;
  const [x, width] = ['x', 'width'].map((name) => Number(seen.getAttribute(name)));
  return [(region.left - graph.left) / graph.width, (region.right - graph.left) / graph.width,
          x / small.width, (x + width) / small.width];
}"""


#: Whether the graph has stopped to scroll: the browser animates the scroll of a key.
STILL = """async () => {
  const region = document.getElementById('graph-region'), before = region.scrollLeft;
  await new Promise((done) => setTimeout(done, 200));
  return region.scrollLeft === before;
}"""


def test_the_graph_is_zoomed_by_button_key_and_wheel_and_an_overview_shows_the_visible_part(
    signed_in: Open, transactional_db: None
) -> None:
    rows.operator_user()
    run = numbers.wide_run()
    with signed_in() as page:
        page.clock.install()
        page.goto(f"/jobs/{run.job_id}/")
        graph, overview, level = page.locator("svg.graph"), page.locator("#graph-overview"), page.locator("#zoom-level")
        expect(overview).to_be_hidden()
        fitted, fitting = graph.bounding_box(), level.text_content()
        assert fitted
        page.get_by_role("button", name="Zoom in").click()
        expect(overview).to_be_visible()
        page.locator("#graph-region").focus()
        page.keyboard.press("+")
        zoomed = graph.bounding_box()
        assert zoomed
        assert zoomed["width"] == pytest.approx(1.25**2 * fitted["width"], rel=0.01)
        left, right, drawn_left, drawn_right = page.evaluate(VISIBLE)
        assert (drawn_left, drawn_right) == pytest.approx((left, right), abs=0.01)
        assert page.locator(".small-node").count() == len(numbers.UIDS)

        node = page.locator('.node-link[href*="node=sessions"]')
        node.scroll_into_view_if_needed()
        node.hover()
        before, zoom = node.bounding_box(), level.text_content()
        page.keyboard.down("Control")
        page.mouse.wheel(0, -100)
        page.keyboard.up("Control")
        expect(level).not_to_have_text(zoom or "")
        after = node.bounding_box()
        assert before
        assert after
        assert after["width"] == pytest.approx(1.25 * before["width"], rel=0.02)
        middle = before["x"] + before["width"] / 2
        assert after["x"] + after["width"] / 2 == pytest.approx(middle, abs=2), "the point under the mouse stays"

        wide = graph.bounding_box()
        Run.objects.filter(pk=run.pk).update(live=rows.live(acknowledged=7))
        jump(page)
        expect(graph).to_contain_text("7 of 10", timeout=POLL_MS)
        assert graph.bounding_box() == wide, "a live update keeps zoom and place"
        page.keyboard.press("-")
        page.keyboard.press("0")
        expect(level).to_have_text(fitting or "")
        expect(overview).to_be_hidden()


def test_a_graph_is_moved_by_the_mouse_by_keys_and_in_the_overview(signed_in: Open, transactional_db: None) -> None:
    """A drag chooses no operator. The chosen operator is visible after its page has loaded, at the same zoom."""
    rows.operator_user()
    run = numbers.wide_run()
    with signed_in() as page:
        page.goto(f"/jobs/{run.job_id}/")
        region, graph = page.locator("#graph-region"), page.locator("svg.graph")
        for _ in range(4):
            page.get_by_role("button", name="Zoom in").click()
        start = region.evaluate("(e) => [e.scrollLeft, e.scrollTop]")
        box = region.bounding_box()
        assert box
        page.mouse.move(box["x"] + 600, box["y"] + 150)
        page.mouse.down()
        page.mouse.move(box["x"] + 400, box["y"] + 100, steps=4)
        page.mouse.up()
        assert region.evaluate("(e) => [e.scrollLeft, e.scrollTop]") == [start[0] + 200, start[1] + 50]
        assert "node=" not in page.url
        region.focus()
        page.keyboard.press("ArrowRight")
        page.wait_for_function("(x) => document.getElementById('graph-region').scrollLeft > x", arg=start[0] + 200)
        page.wait_for_function(STILL)
        page.locator("#graph-overview svg").click(position={"x": 2, "y": 2})
        assert region.evaluate("(e) => [e.scrollLeft, e.scrollTop]") == [0, 0]
        zoomed = graph.bounding_box()
        page.locator('.node-link[href*="node=basket-features"]').focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="basket features")).to_be_visible()
        picture, node = graph.bounding_box(), page.locator(".node-link[aria-current]").bounding_box()
        box = region.bounding_box()
        assert zoomed
        assert picture
        assert node
        assert box
        assert picture["width"] == pytest.approx(zoomed["width"], abs=1)
        assert box["x"] <= node["x"]
        assert node["x"] + node["width"] <= box["x"] + box["width"]
        assert box["y"] <= node["y"]
        assert node["y"] + node["height"] <= box["y"] + box["height"]


def test_a_phone_shows_the_overview_of_a_graph_that_it_cuts(signed_in: Open, running: Run) -> None:
    with signed_in(390) as page:
        page.goto(f"/jobs/{running.job_id}/?graph=detailed")
        expect(page.locator("#graph-overview")).to_be_visible()
        for _ in range(6):
            page.get_by_role("button", name="Zoom out").click()
        expect(page.locator("#graph-overview")).to_be_hidden()
    with signed_in(390, java_script_enabled=False) as page:
        page.goto(f"/jobs/{running.job_id}/?graph=detailed")
        expect(page.locator("svg.graph")).to_be_visible()
        for part in ("#graph-zoom", "#graph-overview"):
            expect(page.locator(part)).to_be_hidden()
