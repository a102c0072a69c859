"""Template tags and filters: quantities with lighter units, relative times, shapes, and live blocks."""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from html import escape
from typing import Any
from zoneinfo import ZoneInfo

from django import template
from django.template.context import Context
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

from console import formats
from console.formats import Quantity
from console.health.findings import Finding
from console.health.words import HEALTH_WORDS
from console.jobs.models import Job
from console.jobs.operator_names import operator_names
from console.operations.maintenance import shown_maintenance
from console.operations.models import Maintenance
from console.ui.addresses import here
from console.ui.graph import svg
from console.ui.graph.picture import GraphPicture
from console.ui.live import block
from console.ui.status import CONCERN_WORDS, DISCARDED, SHAPES, Status, status
from console.ui.tables import html as tables
from console.ui.zones import chosen_zone
from runtime.core.job.code_identity import short_digest

register = template.Library()

_STALE_AFTER_S = 6  #: three polls
_NAME = re.compile(r"`([^`]+)`")
_GAP_OF_QUANTITY = re.compile(r"(?<=\d) (?=(?:ms|s|min|h|d|%|B|[KMGTP]iB|[kMGTP]?/s)(?!\w))")


# ---------------------------------------------------------------- quantities


def quantity(value: Quantity) -> SafeString:
    """HTML of a quantity, with its unit in a lighter tone."""
    unit = f'<span class="unit"> {escape(value.unit)}</span>' if value.unit else ""
    return mark_safe(f'<span class="q">{escape(value.number)}{unit}</span>')  # noqa: S308


def svg_quantity(value: Quantity) -> SafeString:
    unit = f'<tspan class="unit"> {escape(value.unit)}</tspan>' if value.unit else ""
    return mark_safe(f"{escape(value.number)}{unit}")  # noqa: S308


def _quantity_filter(write: Callable[[Any], Quantity]) -> Callable[[Any], SafeString]:
    """A filter that formats by `write`. Templates pass '' for an undefined variable, which counts as missing."""
    return lambda value: quantity(write(None if value == "" else value))


register.filter("quantity", quantity)
register.filter("svg_quantity", svg_quantity)
register.filter("size", _quantity_filter(formats.size))
register.filter("rate", _quantity_filter(formats.rate))
register.filter("duration", _quantity_filter(formats.duration))
register.filter("compact", _quantity_filter(formats.compact))
register.filter("percent", _quantity_filter(formats.percent))
register.filter("exact", _quantity_filter(lambda value: Quantity(formats.count(value))))
register.filter("utc", formats.utc)
register.filter("short_digest", short_digest)
register.filter("words", lambda value: str(value).replace("_", " "))
register.filter("pretty_json", lambda value: json.dumps(value, indent=2, ensure_ascii=False, default=str))


@register.filter
def sentence(text: str, most: int = 0) -> SafeString:
    """A sentence with the names in backticks as code. A line does not end between a number and its unit.

    `most`: characters of a longer sentence that are left; 0: all. Django's `truncatechars` reads every character.
    """
    begin = f"{text[: most - 1]}…" if 0 < most < len(text) else text
    prose = _GAP_OF_QUANTITY.sub("\N{NO-BREAK SPACE}", begin)
    return mark_safe(_NAME.sub(r"<code>\1</code>", escape(prose)))  # noqa: S308


@register.filter
def ticking(finding: Finding, most: int = 0) -> SafeString:
    """The sentence of a finding, with ages that tick. `most`: as in `sentence`."""
    text, place, parts = finding.sentence, 0, list[str]()
    for age in finding.ages:
        if most and age.end >= most:
            break
        parts += (sentence(text[place : age.start]), _time(age.since, "since", escape(text[age.start : age.end])))
        place = age.end
    parts.append(sentence(text[place:], most - place if most else 0))
    return mark_safe("".join(parts))  # noqa: S308


@register.filter
def both_ends(text: str) -> str:
    """A long text without its middle: the last line of a traceback names the error."""
    most, end = 200, 80
    return text if len(text) <= most else f"{text[: most - end]} … {text[-end:]}"


@register.filter
def operators(uids: Iterable[str], graph: Any) -> str:
    """The names of operators, as the graph shows them. A graph of another version may lack some: then their uids."""
    names = operator_names(graph or None)
    return ", ".join(names.get(uid, uid) for uid in uids)


@register.filter
def operator(uid: str, graph: Any) -> SafeString:
    """The name of an operator, with its uid below if that differs."""
    name = operator_names(graph or None).get(uid, uid)
    below = "" if name == uid else format_html('<span class="under mono">{}</span>', uid)
    return format_html("{}{}", name, below)


@register.simple_tag
def attempt(number: int, token: int) -> SafeString:
    """An attempt by its number within the run, and by its token, which logs name. 0: the number is not known."""
    if not number:
        return format_html('token <span class="q">{}</span>', token)
    return format_html('<span class="q">{}</span> <span class="muted">(token {})</span>', number, token)


@register.filter
def coordinate(value: float) -> str:
    """A length for an SVG attribute, the same in every locale."""
    return f"{value:g}"


# ---------------------------------------------------------------- moments


@register.simple_tag(takes_context=True)
def ago(context: Context, moment: datetime | None, *, watched: bool = False) -> SafeString:
    """A relative time, or a time of the chosen zone. A `watched` time stays relative: it becomes a warning with age."""
    if moment is None:
        return format_html('<span class="muted">{}</span>', "never")
    zone = None if watched else chosen_zone(context.get("request"))
    if zone is not None:
        return _absolute(moment, zone, _now(context))
    stale_after = f' data-stale="{_STALE_AFTER_S}"' if watched else ""
    return _time(moment, "ago", formats.ago(moment, _now(context)), stale_after)


@register.simple_tag(takes_context=True)
def lasting(context: Context, start: datetime | None, end: datetime | None = None) -> SafeString:
    """The time from `start` to `end`; without an end it keeps counting."""
    if start is None:
        return quantity(formats.NO_QUANTITY)
    if end is None:
        return _time(start, "since", formats.since(start, _now(context)))
    return quantity(formats.duration((end - start).total_seconds() * 1000))


def _absolute(moment: datetime, zone: ZoneInfo, now: datetime) -> SafeString:
    utc, local = moment.astimezone(UTC), moment.astimezone(zone)
    form = "%m-%d %H:%M:%S" if local.year == now.astimezone(zone).year else "%Y-%m-%d %H:%M:%S"
    return format_html(
        '<time class="zoned" datetime="{}" title="{} UTC"><span class="nowrap">{}</span> {}</time>',
        utc.isoformat(timespec="milliseconds"), f"{utc:%Y-%m-%d %H:%M:%S}", f"{local:{form}}", f"{local:%Z}",
    )  # fmt: skip


def _time(moment: datetime, tick: str, text: str, attributes: str = "") -> SafeString:
    utc = moment.astimezone(UTC)
    at = utc.isoformat(timespec="milliseconds")
    return mark_safe(  # noqa: S308
        f'<time datetime="{at}" title="{formats.utc(moment)}" data-tick="{tick}"{attributes}>{text}</time>'
    )


def _now(context: Context) -> datetime:
    now = context.get("now")
    return now if isinstance(now, datetime) else timezone.now()


@register.filter
def utc_from_iso(moment: str | None) -> str:
    """A moment in ISO 8601 as the pages show it, in UTC and to the second."""
    return formats.utc(datetime.fromisoformat(moment)) if moment else formats.NO_VALUE


# ---------------------------------------------------------------- states


@register.simple_tag
def state(
    kind: str, value: str | None, *, discarded: bool = False, large: bool = False, health: str | None = ""
) -> SafeString:
    """A state as shape and word: {% state "run" run.state %}. `health` is the level of a run's health."""
    return _state_mark(status(kind, DISCARDED if discarded else value or "", health or ""), is_large=large)


@lru_cache
def _state_mark(status: Status, *, is_large: bool) -> SafeString:
    """A list shows the same few states in each row."""
    return format_html(
        '<span class="status {}{}">{}<span class="word">{}</span></span>',
        status.meaning, " large" if is_large else "", shape(status.shape), status.word,
    )  # fmt: skip


@register.filter
def health_word(level: str) -> str:
    return HEALTH_WORDS.get(level, level)


@register.filter
def concern_word(concern: str) -> str:
    return CONCERN_WORDS.get(concern, concern)


@register.filter
def concern_words(concerns: Iterable[str]) -> str:
    return ", ".join(map(concern_word, concerns))


@register.simple_tag
def shape(name: str) -> SafeString:
    drawn = SHAPES.get(name, SHAPES["ring"])
    return mark_safe(  # noqa: S308
        f'<svg class="shape" viewBox="0 0 12 12" aria-hidden="true" focusable="false">{drawn}</svg>'
    )


@register.simple_tag
def svg_shape(name: str, x: float, y: float) -> SafeString:
    return mark_safe(svg.shape(name, x, y))  # noqa: S308


# ---------------------------------------------------------------- addresses


register.simple_tag(here, takes_context=True)


@register.simple_tag
def compare_url(job: int, number: int, another: int) -> str:
    """The address of the comparison of two checkpoints, by their numbers; the older is the base."""
    return f"{reverse('ui:compare', args=[job])}?base={min(number, another)}&other={max(number, another)}"


@register.simple_tag(takes_context=True)
def compact_graph(context: Context, picture: GraphPicture, operator: str, name: str = "node") -> SafeString:
    return svg.compact_graph(picture, operator, lambda uid: here(context, node=uid), name)


# ---------------------------------------------------------------- panels and tables


@register.simple_block_tag
def panel(content: str, key: str, title: str, note: str = "") -> SafeString:
    """{% panel "files" "Files" note="in the storage" %} … {% endpanel %}: a section with its heading."""
    beside = format_html('<span class="muted small">{}</span>', note) if note else ""
    return format_html(
        '<section class="panel" aria-labelledby="{key}-head">\n'
        '<div class="panel-head"><h2 id="{key}-head">{title}</h2>{beside}</div>{content}</section>',
        key=key, title=title, beside=beside, content=content,
    )  # fmt: skip


register.tag("partialdef", tables.partialdef)
register.simple_tag(tables.table, takes_context=True)


# ---------------------------------------------------------------- live blocks


register.tag("live", block.live)


@register.simple_tag
def current_maintenance() -> Maintenance | None:
    return shown_maintenance()


@register.simple_tag
def weir_command(act: str, job: Job, *arguments: Any, **options: Any) -> str:
    """The command line for an operation on `job`, for scripts. True is a flag, and a list repeats its option.

    Options that are None, False or empty are left out.
    """
    parts = ["weir", act, job.name, *map(str, arguments)]
    for name, value in _without_empty(options).items():
        option = "--from" if name == "start_from" else f"--{name.replace('_', '-')}"
        for each in value if isinstance(value, list) else [value]:
            parts += [option] if each is True else [option, str(each)]
    return shlex.join(parts)


def _without_empty(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without those that are None, False or empty; 0 is a value. A mapping stands for its options."""
    spread: dict[str, Any] = {}
    for name, value in options.items():
        spread |= value if isinstance(value, Mapping) else {name: value}
    return {name: value for name, value in spread.items() if value or (value == 0 and value is not False)}


@register.inclusion_tag("weir/_curl.html", takes_context=True)
def curl(context: Context, kind: str, job: Job, **params: Any) -> dict[str, str]:
    """The same request as `weir` makes, for hosts without it, with the same parameters left out."""
    body = json.dumps({"kind": kind, "params": _without_empty(params)}, ensure_ascii=False, default=str)
    url = context["request"].build_absolute_uri(reverse("api:operations", args=[job.pk]))
    return {"body": shlex.quote(body), "url": shlex.quote(url)}
