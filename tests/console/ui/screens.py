"""Pictures of every page for `docs/screens`: `make screens`.

A test that only this command selects: it needs the servers and the Chromium of the tests, and their rows.
"""

from collections.abc import Mapping
from datetime import timedelta
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
from console.health.housekeeping import store_verdicts
from console.jobs.models import Run
from tests.console.ui import every_page, logs, numbers
from tests.console.ui.browsing import Open
from tests.console.ui.palette import reduce_colours

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

FOLDER = Path(__file__).parents[3] / "docs/screens"
README_PICTURES = FOLDER.parent / "images"
#: Also dark, and at the width of a telephone.
MAIN_PAGES = ("jobs", "job", "job-recovered", "job-slow", "run", "checkpoint", "restore")
WIDTH, NARROW = 1440, 390
README_WIDTH = 1120  #: a page on the web shows the picture at some 900 px, so that its texts stay legible
MARGIN = 16  #: below the last section of the picture in README
HEAD = """# Screens of the console

Every page at {width} px by day; the main pages also by night and at {narrow} px. `make screens` takes these pictures of
the rows of the tests, in a real Chromium. Numbers, times and folders are made up.
"""


def test_take_pictures(signed_in: Open, running: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands, so that all pages show the same moment."""
    now = running.live_at
    assert now is not None
    monkeypatch.setattr(timezone, "now", lambda: now)
    monkeypatch.setattr(defaulttags, "datetime", SimpleNamespace(now=lambda tz: now))
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.png"):
        old.unlink()
    User.objects.update(username="ada")  # "operator" is also the word for a step of a job
    numbers.record(running)
    paths = every_page.pages_of_running_job(running) | every_page.pages_of_other_states()
    recovered, slow = numbers.recovered_run(days=6).job_id, numbers.slow_run().job_id
    paths = {"job-recovered": f"/jobs/{recovered}/", "job-slow": f"/jobs/{slow}/"} | paths
    paths["trend"] = f"/jobs/{recovered}/checkpoints/trend/?days=7"
    for run in Run.objects.all():
        logs.write(run)
    for moment in (now - timedelta(minutes=4), now):
        store_verdicts(moment)
    with signed_in(WIDTH) as page:
        page.clock.set_fixed_time(now)
        for name, path in paths.items():
            page.goto(path)
            take(page, name)
        page.emulate_media(color_scheme="dark")
        for name in MAIN_PAGES:
            page.goto(paths[name])
            take(page, f"{name}-dark")
    with signed_in(README_WIDTH) as page:
        page.clock.set_fixed_time(now)
        page.goto(paths["job-recovered"])
        history = page.locator("section", has=page.get_by_role("heading", name="History")).bounding_box()
        assert history is not None
        height = history["y"] + history["height"] + MARGIN
        take(page, "job", README_PICTURES, clip={"x": 0, "y": 0, "width": README_WIDTH, "height": height})
    with signed_in(NARROW) as page:
        page.clock.set_fixed_time(now)
        for name in MAIN_PAGES:
            page.goto(paths[name])
            take(page, f"{name}-narrow")
    (FOLDER / "README.md").write_text(listing(paths))


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
