"""Pictures of every page for `docs/screens`: `make screens`.

A test that only this command selects: it needs the servers and the Chromium of the tests, and their rows.
"""

import os
from collections.abc import Mapping
from datetime import datetime, timedelta
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from django.template import defaulttags
from django.utils import timezone
from PIL import Image
from playwright.sync_api import FloatRect, Page

from console import formats
from console.accounts.models import User
from console.checkpoints.models import Checkpoint
from console.health.housekeeping import store_verdicts
from console.health.models import JobHealth
from console.health.rules.checkpoints import SLOW
from console.jobs.models import Job, Run
from console.operations.models import BulkOperation, Operation
from console.pages.workers import Answer, Worker
from runtime.core.job.lifecycle import RunAct, refusal
from runtime.core.job.messages import CheckpointKind
from runtime.core.snapshot.manifest import folder_of
from tests.console.stored import job_root
from tests.console.ui import every_page, logs, numbers, rows
from tests.console.ui.browsing import Open
from tests.console.ui.palette import reduce_colours
from tests.console.ui.story import story_of_recovered_run

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

FOLDER = Path(__file__).parents[3] / "docs/screens"
README_PICTURES = FOLDER.parent / "images"
#: Also dark, and at the width of a telephone.
MAIN_PAGES = ("jobs", "job", "job-recovered", "job-slow", "run", "checkpoint", "restore")
WIDTH, NARROW = 1440, 390
README_WIDTH = 900  #: GitHub shows the picture about as wide, so its texts keep their size
README_SCALE = 2  #: pixels of the picture per pixel of the page
README_HEIGHT = 1.2  #: of the plots, compared with those of the page
MARGIN = 16  #: below the last section of the picture in README
ORPHAN_BYTES = 40 << 20
_WIKI = "https://wiki.example.com/runbooks"
OWNERS: dict[str, dict[str, Any]] = {
    "flights": {"owner": "team delays", "runbook": f"{_WIKI}/flights", "tags": ["production", "delays"]},
    "flights-delays": {"owner": "team delays", "runbook": f"{_WIKI}/delays", "tags": ["production", "delays"]},
    "flights-failed": {"owner": "team fares", "runbook": f"{_WIKI}/fares", "tags": ["production", "fares"]},
    "flights-finished": {"owner": "team fares", "tags": ["backfill"]},
    "flights-restarting": {"owner": "team gates", "runbook": f"{_WIKI}/gates", "tags": ["production"]},
    "flights-slow": {"owner": "team gates", "runbook": f"{_WIKI}/gates", "tags": ["production"]},
    "flights-new": {"owner": "team fares", "tags": ["trial"]},
}
HEAD = """# Screens of the console

Every page at {width} px by day; the main pages also by night and at {narrow} px. `make screens` takes these pictures of
the rows of the tests, in a real Chromium. Numbers, times and folders are made up.
"""


def test_take_pictures(signed_in: Open, transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands, so that all pages show the same moment. All places for runs are taken, and a stage reads state.

    It stands where an interval of numbers ends: sums since a checkpoint then include all records up to the present.
    """
    now = timezone.now().replace(microsecond=0)
    now -= timedelta(seconds=now.second % numbers.FINE)
    monkeypatch.setattr(timezone, "now", lambda: now)
    monkeypatch.setattr(defaulttags, "datetime", SimpleNamespace(now=lambda tz: now))
    workers = Worker("runs@host-1", ("runs",), 4, 4), Worker("stages@host-1", ("stages", "standing"), 2, 1)
    answer = Answer(now, workers)
    monkeypatch.setattr("console.pages.workers.CENSUS", SimpleNamespace(last=lambda: answer))
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.png"):
        old.unlink()
    user = rows.operator_user("ada")
    recovered = numbers.recovered_run(upto=None, days=6)
    pages = every_page.pages_of_state("finished", is_whole=True) | every_page.pages_of_state("failed", is_whole=True)
    running, slow = flowing_run(user), numbers.slow_run(upto=None)
    pages |= every_page.pages_of_state("restarting", is_whole=True) | every_page.pages_without_run()
    paths = every_page.pages_of_running_job(running) | pages
    paths = {"job-recovered": f"/jobs/{recovered.job_id}/", "job-slow": f"/jobs/{slow.job_id}/"} | paths
    paths |= pages_of_some_jobs(user, running, recovered) | {"slot-log": f"{paths['run']}?slot=1"}
    settings.WEIR_SLOT_LOGS = (folder_of_slots,) = (Path(settings.WEIR_VAR) / "work",)
    for run in Run.objects.all():
        logs.write(run)
        logs.write_slots(run, folder_of_slots)
    for name, fields in OWNERS.items():
        Job.objects.filter(name=name).update(**fields)
    store_findings(now)
    with signed_in(WIDTH) as page:
        page.clock.set_fixed_time(now)
        for name, path in paths.items():
            page.goto(path)
            take(page, name)
        page.emulate_media(color_scheme="dark")
        for name in MAIN_PAGES:
            page.goto(paths[name])
            take(page, f"{name}-dark")
    with signed_in(README_WIDTH, device_scale_factor=README_SCALE) as page:
        page.clock.set_fixed_time(now)
        page.goto(paths["job-recovered"])
        take_incident(page, recovered)
    with signed_in(NARROW) as page:
        page.clock.set_fixed_time(now)
        for name in MAIN_PAGES:
            page.goto(paths[name])
            take(page, f"{name}-narrow")
    (FOLDER / "README.md").write_text(listing(paths))


def flowing_run(user: User) -> Run:
    """A job in full flow, with a query of the state in each of its savepoints."""
    run, now = numbers.run_with_story("flights-delays", "running", None), timezone.now()
    rows.operations_of(run, user)
    earlier, newest = run.checkpoints.filter(status="completed", kind="savepoint").order_by("number")
    rows.state_query(earlier, created_at=now - timedelta(seconds=50), requested_by=user)
    request = {**rows.state_query_request(), "key": {"carrier": "AA"}}
    rows.state_query(newest, "running", request=request, requested_by=user)
    return run


def pages_of_some_jobs(user: User, running: Run, recovered: Run) -> dict[str, str]:
    """Pages of acts on three jobs, of which one has failed, of a job with two versions, of an orphan and a failure."""
    failed = Run.objects.get(job__name="flights-failed")
    savepoints = [
        Operation.objects.filter(run=run, kind="savepoint", state="succeeded").latest("created_at")
        for run in (recovered, running)
    ]
    results = [every_page.bulk_result(each.job_id, operation=each) for each in savepoints]
    results.append(every_page.bulk_result(failed.job_id, refusal(failed.run_state, RunAct.SAVEPOINT) or ""))
    bulk = BulkOperation.objects.create(
        kind="savepoint", requested_by=user, created_at=min(each.created_at for each in savepoints),
        results=results,
    )  # fmt: skip
    leave_orphan(running)
    expired = Operation.objects.filter(run=running, kind="savepoint", state="failed").latest("created_at")
    jobs = "&".join(f"job={run.job_id}" for run in (recovered, running, failed))
    return {
        "bulk": f"/jobs/bulk/?kind=stop&{jobs}",
        "bulk-result": f"/jobs/bulk/{bulk.pk}/",
        "versions": f"/jobs/{recovered.job_id}/versions/",
        "trend": f"/jobs/{recovered.job_id}/checkpoints/trend/?days=7",
        "operation": f"/operations/{expired.pk}/",
    }


def leave_orphan(run: Run) -> None:
    """A folder of checkpoint files that no row names."""
    folder = job_root(run.job_id) / folder_of(CheckpointKind.SAVEPOINT, 214, run.token - 30)
    folder.mkdir(parents=True)
    state = folder / "window-0.arrow"
    with state.open("wb") as file:
        file.truncate(ORPHAN_BYTES)
    changed_s = (timezone.now() - timedelta(days=3)).timestamp()
    for path in (state, folder):
        os.utime(path, (changed_s, changed_s))


def store_findings(now: datetime) -> None:
    """The findings of four minutes. Slow checkpoints are not found before most of the newest five were slow."""
    for moment in (now - timedelta(minutes=4), now):
        store_verdicts(moment)
    for health in JobHealth.objects.filter(findings__contains=[{"rule": SLOW}]):
        slow = Checkpoint.objects.filter(run_id=health.run_id, status="completed", duration_ms__gt=5_000)
        third = slow.order_by("number")[2].completed_at
        assert third
        for finding in health.findings:
            if finding["rule"] == SLOW:
                finding["since"] = max(datetime.fromisoformat(finding["since"]), third).isoformat()
        health.since = datetime.fromisoformat(health.findings[0]["since"])
        health.save(update_fields=["since", "findings"])


#: Leaves the head, the graph and the history of the page of a job, with higher plots, and adds a lane above the plots.
#: Each part of the story has a band from the lane down through all plots. A part: begin and end in ms, title, the words
#: below or behind it, colour, and whether it stands above the others because its band is narrow.
TELL_INCIDENT = """([height, parts, note]) => {
  const write = (words, x, y, font, colour, parent, anchor = "middle") => {
    const text = document.createElementNS("http://www.w3.org/2000/svg", "text");
    text.textContent = words;
    text.style.cssText = `font: ${font} var(--sans); fill: var(--${colour}); text-anchor: ${anchor}; white-space: pre`;
    text.setAttribute("x", x);
    text.setAttribute("y", y);
    parent.append(text);
    return text;
  };
  const lay = (left, top, width, height, colour, opacity) => {
    const band = document.createElement("div");
    band.style.cssText = `position: absolute; z-index: -1; left: ${left}px; top: ${top}px; width: ${width}px;
      height: ${height}px; background: var(--${colour}); opacity: ${opacity}`;
    timeline.append(band);
  };
  const graph = document.querySelector("section:has(#graph-head)");
  const history = document.querySelector("section:has(#plots-head)"), timeline = history.querySelector(".timeline");
  const rows = ".plot-row:not(.axis-row) .small, .plot-row:has(.event-lane), .plot-row:has(.plot.state), .rule";
  const drawn = ".plot .cut, .line.out, .line.other, .plot-legend li:has(.out, .other, .pre_barrier, .sync)";
  const heads = "#horizon, #vitals > div:has(#oldest-restorable), #graph-zoom, #graph-overview, .legend-line";
  const others = `header.site, .crumbs, main > *, .inspector, .plots-nav, details, .narrow-graph, .narrow-only`;
  const kept = [history, graph, document.querySelector("h1")];
  for (const other of document.querySelectorAll(`${others}, ${heads}, ${rows}, ${drawn}`)) {
    if (!kept.some((part) => other.contains(part))) other.style.display = "none";
  }
  document.querySelector("main").style.padding = "16px";
  graph.querySelector("#graph-region").style.padding = "0 8px 8px";
  graph.querySelector("svg.graph").style.cssText = "min-width: 0; width: 100%; height: auto";
  for (const text of graph.querySelectorAll(".graph > .weir text, .node .name")) text.style.fontSize = "17px";
  for (const plot of history.querySelectorAll("svg.plot")) {
    const lines = plot.querySelector("svg"), grown = Math.round(Number(lines.getAttribute("height")) * height);
    const middle = 12 + Math.floor(grown / 2), [, half] = plot.querySelectorAll("line.grid");
    lines.setAttribute("height", grown);
    plot.setAttribute("height", grown + 12);
    half.setAttribute("y1", middle);
    half.setAttribute("y2", middle);
    plot.querySelector(".scale.middle")?.setAttribute("y", middle);
  }
  const row = document.createElement("div");
  row.className = "plot-row";
  row.innerHTML = '<div class="plot-label"><b>What happened</b></div><svg width="100%" height="66"></svg>';
  timeline.prepend(row);
  timeline.style.isolation = "isolate";
  const lane = row.querySelector("svg"), whole = timeline.getBoundingClientRect(), room = lane.getBoundingClientRect();
  const bottom = timeline.querySelector(".axis-row").getBoundingClientRect().top - whole.top;
  const {begin, end} = timeline.dataset, place = (at) => (at - begin) / (end - begin) * room.width;
  for (const [since, until, title, more, colour, isAbove] of parts) {
    const left = place(since), width = place(until) - left, middle = left + width / 2;
    const x = room.left - whole.left + left, y = room.top - whole.top + (isAbove ? 24 : 30);
    lay(x, y, width, bottom - y, colour, isAbove ? 0.3 : 0.09);
    if (isAbove) {
      const text = write(`${title}   `, middle, 15, "600 13px", colour, lane);
      const behind = document.createElementNS("http://www.w3.org/2000/svg", "tspan");
      behind.textContent = more;
      behind.style.cssText = "font-weight: 400; fill: var(--muted)";
      text.append(behind);
    } else {
      lay(x, y, width, 3, colour, 1);
      write(title, middle, 47, "600 13px", colour, lane);
      write(more, middle, 61, "12px", "muted", lane);
    }
  }
  const [words, at, colour] = note;
  write(words, place(at), 9, "600 12px", colour, history.querySelector("svg.plot.checkpoints"), "end");
  history.querySelector("#no-numbers rect").style.fill = "color-mix(in srgb, var(--failed) 16%, var(--surface))";
  history.querySelector("#no-numbers line").style.stroke = "var(--failed)";
}"""


def incident(run: Run) -> tuple[list[tuple[Any, ...]], tuple[Any, ...]]:
    """The parts of the story of a recovered run, and the note on its savepoint, for `TELL_INCIDENT`."""
    story, expired = story_of_recovered_run(run), run.checkpoints.get(reason="expired")
    failed_at, resumed_at, caught_up_at = story.failed_at, story.resumed_at, story.up_to_date_at
    assert run.live
    assert failed_at
    assert resumed_at
    assert caught_up_at
    assert expired.completed_at
    lost = run.attempts.get(outcome="failed").detail or {}
    slot, host = lost["slot"], lost["slot_log"].rpartition(" ")[-1]
    moved = f"slot {slot}: {host} → {run.live['slots'][slot]['host']}"
    down = f"killed, down {(resumed_at - failed_at).total_seconds():.0f} s"
    so_far = f"{formats.since(caught_up_at, story.present)} so far"
    episodes = [
        (story.slow_at, failed_at, "join slow", formats.since(story.slow_at, failed_at), "attention", False),
        (failed_at, resumed_at, down, moved, "failed", True),
        (resumed_at, caught_up_at, "catches up", formats.since(resumed_at, caught_up_at), "accent", False),
        (caught_up_at, story.present, "up to date", so_far, "ok", False),
    ]
    parts = [(since.timestamp() * 1_000, until.timestamp() * 1_000, *details) for since, until, *details in episodes]
    took = formats.since(expired.triggered_at, expired.completed_at)
    return parts, (f"a savepoint expires after {took}", expired.completed_at.timestamp() * 1_000, "attention")


def take_incident(page: Page, run: Run) -> None:
    """The picture in README: the head, the graph and the history of the job's page, with the story over the plots."""
    page.evaluate(TELL_INCIDENT, [README_HEIGHT, *incident(run)])
    size = page.locator("section", has=page.get_by_role("heading", name="History")).bounding_box()
    assert size is not None
    clip: FloatRect = {"x": 0, "y": 0, "width": README_WIDTH, "height": size["y"] + size["height"] + MARGIN}
    take(page, "job", README_PICTURES, clip=clip)


#: Folders of this machine in the texts of a page become folders of an installation.
RENAME_FOLDERS = """([from, to]) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(from, to);
}"""


def take(page: Page, name: str, folder: Path = FOLDER, clip: FloatRect | None = None) -> None:
    """Saves the whole page, or a part of it."""
    page.evaluate(RENAME_FOLDERS, [str(settings.WEIR_VAR), "/srv/weir"])
    with Image.open(BytesIO(page.screenshot(full_page=True, clip=clip))) as picture:
        reduce_colours(picture).save(folder / f"{name}.png", optimize=True)


def listing(paths: Mapping[str, str]) -> str:
    lines = [HEAD.format(width=WIDTH, narrow=NARROW), "| Page | Pictures |", "|---|---|"]
    for name in paths:
        variants = [name, f"{name}-dark", f"{name}-narrow"] if name in MAIN_PAGES else [name]
        links = [f"[{variant.removeprefix(name).strip('-') or 'light'}]({variant}.png)" for variant in variants]
        lines.append(f"| {name.replace('-', ' ').capitalize()} | {', '.join(links)} |")
    return "\n".join(lines) + "\n"
