"""Pictures of every page for `docs/screens`: `make screens`.

A test that only this command selects: it needs the servers and the Chromium of the tests, and their rows.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.conf import settings
from django.template import defaulttags
from django.utils import timezone
from PIL import Image
from playwright.sync_api import FloatRect, Page

from console.accounts.models import User
from console.checkpoints.models import Checkpoint
from console.health.housekeeping import store_verdicts
from console.health.models import JobHealth
from console.health.rules.checkpoints import SLOW
from console.jobs.models import Run
from console.operations.workers import Answer, Worker
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
README_HEIGHT = 1.4  #: of the plots, compared with those of the page
MARGIN = 16  #: below the last section of the picture in README
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
    monkeypatch.setattr("console.operations.workers.CENSUS", SimpleNamespace(last=lambda: answer))
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.png"):
        old.unlink()
    running = flowing_run(rows.operator_user("ada"))
    paths = every_page.pages_of_running_job(running) | every_page.pages_of_other_states(is_whole=True)
    recovered, slow = numbers.recovered_run(upto=None, days=6), numbers.slow_run(upto=None)
    paths = {"job-recovered": f"/jobs/{recovered.job_id}/", "job-slow": f"/jobs/{slow.job_id}/"} | paths
    paths["trend"] = f"/jobs/{recovered.job_id}/checkpoints/trend/?days=7"
    for run in Run.objects.all():
        logs.write(run)
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
    """A job in full flow, with two queries of its state."""
    run = numbers.run_with_story("flights-delays", "running", None)
    rows.operations_of(run, user)
    newest = run.checkpoints.filter(status="completed", kind="checkpoint").latest("number")
    for state in ("succeeded", "running"):
        rows.state_query(newest, state, requested_by=user)
    return run


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


#: Leaves the head and the history of the page of a job, with higher plots, and writes notes into the plots. A note:
#: class of its plot, time in ms, words, whether it stands on the left of its time, colour.
TELL_INCIDENT = """([height, notes]) => {
  const history = document.querySelector("section:has(#plots-head)");
  const rows = ".plot-row:not(.axis-row) .small, .plot-row:has(.event-lane)";
  const others = `header.site, .crumbs, main > *, .plots-nav, details, ${rows}`;
  for (const other of document.querySelectorAll(others)) {
    if (!other.contains(history) && !other.querySelector("h1")) other.style.display = "none";
  }
  document.querySelector(".plot-row:has(.plot.state)").style.display = "none";
  document.querySelector("main").style.padding = "16px";
  for (const plot of document.querySelectorAll("svg.plot")) {
    const drawn = plot.querySelector("svg"), grown = Math.round(Number(drawn.getAttribute("height")) * height);
    const middle = 12 + Math.floor(grown / 2), [, half] = plot.querySelectorAll("line.grid");
    drawn.setAttribute("height", grown);
    plot.setAttribute("height", grown + 12);
    half.setAttribute("y1", middle);
    half.setAttribute("y2", middle);
    plot.querySelector(".scale.middle")?.setAttribute("y", middle);
  }
  const {begin, end} = document.querySelector("[data-timeline]").dataset;
  for (const [plot, at, words, isLeft, colour, y] of notes) {
    const text = document.createElementNS("http://www.w3.org/2000/svg", "text");
    text.textContent = words;
    for (const [name, value] of Object.entries({
      x: `${(at - begin) / (end - begin) * 100}%`, y, dx: isLeft ? -8 : 8, "text-anchor": isLeft ? "end" : "start",
    })) text.setAttribute(name, value);
    Object.assign(text.style, {
      font: "600 13px system-ui, sans-serif", fill: `var(--${colour})`, stroke: "var(--surface)", strokeWidth: "4px",
      paintOrder: "stroke", strokeLinejoin: "round",
    });
    document.querySelector(`svg.${plot}`).append(text);
  }
}"""


def take_incident(page: Page, run: Run) -> None:
    """The picture in README: the head of the job's page and its history, with the events of the story as notes."""
    story = story_of_recovered_run(run)
    assert story.failed_at
    assert story.restored_at
    assert story.up_to_date_at
    expired, restored = run.checkpoints.get(reason="expired"), run.checkpoints.get(triggered_at=story.restored_at)
    half_slow = story.slow_at + timedelta(seconds=45)
    notes = [
        ("plot.records", half_slow, "join slow", True, "attention", 94),
        ("plot.records", story.failed_at, "kill -9: slot 1", False, "failed", 94),
        ("plot.lag", story.failed_at, f"back to checkpoint {restored.number}", True, "attention", 26),
        ("plot.lag", story.up_to_date_at, "up to date", False, "ok", 92),
        ("plot.checkpoints", story.failed_at, f"savepoint {expired.number} expired", False, "failed", 46),
    ]
    given = [(plot, at.timestamp() * 1000, *more) for plot, at, *more in notes]
    page.evaluate(TELL_INCIDENT, [README_HEIGHT, given])
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
