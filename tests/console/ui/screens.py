"""Pictures of every page for `docs/screens`: `make screens`.

A test that only this command selects: it needs the servers and the Chromium of the tests, and their rows.
"""

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import pytest
from django.utils import timezone
from PIL import Image
from playwright.sync_api import Page

from console.health.housekeeping import store_verdicts
from console.jobs.models import Run
from tests.console.ui import every_page, numbers
from tests.console.ui.browsing import Open

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

FOLDER = Path(__file__).parents[3] / "docs/screens"
MAIN_PAGES = ("jobs", "job", "run", "checkpoint", "restore")  #: also dark, and at the width of a telephone
COLOURS = 128
WIDTH, NARROW = 1440, 390
HEAD = """# Screens of the console

Every page at {width} px by day; the main pages also by night and at {narrow} px. `make screens` takes these pictures of
the rows of the tests, in a real Chromium. Numbers and times are made up.
"""


def test_take_pictures(signed_in: Open, running: Run) -> None:
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.png"):
        old.unlink()
    numbers.record(running, timezone.now())
    paths = every_page.pages_of_running_job(running) | every_page.pages_of_other_states()
    store_verdicts()
    with signed_in(WIDTH) as page:
        for name, path in paths.items():
            page.goto(path)
            take(page, name)
        page.emulate_media(color_scheme="dark")
        for name in MAIN_PAGES:
            page.goto(paths[name])
            take(page, f"{name}-dark")
    with signed_in(NARROW) as page:
        for name in MAIN_PAGES:
            page.goto(paths[name])
            take(page, f"{name}-narrow")
    (FOLDER / "README.md").write_text(listing(paths))


def take(page: Page, name: str) -> None:
    """Saves the whole page with few colours, which halves its size at least."""
    with Image.open(BytesIO(page.screenshot(full_page=True))) as picture:
        few = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        few.save(FOLDER / f"{name}.png", optimize=True)


def listing(paths: Mapping[str, str]) -> str:
    lines = [HEAD.format(width=WIDTH, narrow=NARROW), "| Page | Pictures |", "|---|---|"]
    for name in paths:
        variants = [name, f"{name}-dark", f"{name}-narrow"] if name in MAIN_PAGES else [name]
        links = [f"[{variant.removeprefix(name).strip('-') or 'light'}]({variant}.png)" for variant in variants]
        lines.append(f"| {name.replace('-', ' ').capitalize()} | {', '.join(links)} |")
    return "\n".join(lines) + "\n"
