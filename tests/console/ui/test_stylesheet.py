"""What the stylesheet and the scripts promise: readable by day and by night, nothing inline, nothing from elsewhere."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from console.ui.plots.timeline import PHASES

ROOT = Path(__file__).resolve().parents[3]
STATIC = ROOT / "console/ui/static/weir"
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
CSS = (STATIC / "weir.css").read_text()

_PAIR = re.compile(r"--(?P<name>[\w-]+): light-dark\((?P<light>#\w{6}), (?P<dark>#\w{6})\)")
_ALIAS = re.compile(r"--(?P<name>[\w-]+): var\(--(?P<of>[\w-]+)\)")
_PHASE = re.compile(r"^\.(?P<phase>\w+) { --phase: light-dark\((?P<light>#\w{6}), (?P<dark>#\w{6})\); }$", re.MULTILINE)

#: (foreground, background, least ratio): 4.5 for words, 3 for shapes and edges of controls (WCAG 2.2 AA)
WANTED = [
    *((ink, ground, 4.5) for ground in ("page", "surface", "sunken") for ink in ("text", "strong", "muted", "accent",
      "accent-strong", "ok", "busy", "attention", "failed")),
    ("on-accent", "accent", 4.5), ("on-accent", "accent-strong", 4.5),
    ("control", "surface", 3.0), ("control", "page", 3.0),
]  # fmt: skip


def tokens(mode: str) -> dict[str, str]:
    colours = {match["name"]: match[mode] for match in _PAIR.finditer(CSS)}
    for match in _ALIAS.finditer(CSS):
        colours[match["name"]] = colours[match["of"]]
    return colours


def luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_the_measure_is_right() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize(("ink", "ground", "least"), WANTED)
def test_contrast_is_aa_in_both_modes(mode: str, ink: str, ground: str, least: float) -> None:
    colours = tokens(mode)
    assert contrast(colours[ink], colours[ground]) >= least


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_a_phase_of_a_checkpoint_has_no_colour_of_a_meaning_and_differs_from_the_next(mode: str) -> None:
    """Brown was a phase, backpressure, a restart and attention, in legends above each other."""
    colours = tokens(mode)
    phases = {match["phase"]: match[mode] for match in _PHASE.finditer(CSS)}
    assert tuple(phases) == PHASES
    assert not set(phases.values()) & {colours[meaning] for meaning in ("ok", "busy", "attention", "failed")}
    for phase, following in pairwise(phases):
        assert contrast(phases[phase], phases[following]) >= 1.8, (phase, following)


def test_colours_are_spelled_among_the_tokens_only() -> None:
    body = CSS[CSS.index("/* ---") :]
    loose = [line for line in body.splitlines() if re.search(r"#[0-9a-f]{3,6}\b", line) and "light-dark" not in line]
    assert loose == []


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(ROOT / "templates")))
def test_templates_hold_nothing_that_a_strict_policy_forbids(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"\sstyle=|\son[a-z]+=|<style|hx-on|javascript:", text)
    assert not re.search(r"<script(?![^>]*\ssrc=)", text)
    assert not re.search(r"(src|href)=\"(https?:)?//", text)


@pytest.mark.parametrize("path", sorted(STATIC.glob("*.js")), ids=lambda path: path.name)
def test_a_script_is_small_and_loads_our_own_only(path: Path) -> None:
    script = path.read_text()
    assert len(script.splitlines()) <= 170
    assert re.findall(r"^ *import\b.*", script, re.MULTILINE) == re.findall(
        r'^import "\./\w+\.js";', script, re.MULTILINE
    )
    assert "eval(" not in script


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(ROOT / "templates")))
def test_words_are_plain(path: Path) -> None:
    words = re.sub(r"{[%#{].*?[}%#]}|<[^>]+>|<!doctype html>", "", path.read_text(), flags=re.DOTALL)
    assert "!" not in words
