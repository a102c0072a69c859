"""The choice between relative times and times of a zone. It is a cookie, as the theme is."""

from functools import cache
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from django.http import HttpRequest

COOKIE: Final = "weir_zone"


@cache
def known_zones() -> frozenset[str]:
    return frozenset(available_timezones())


def chosen_zone(request: HttpRequest | None) -> ZoneInfo | None:
    """The zone of absolute times; None for relative times."""
    name = "" if request is None else request.COOKIES.get(COOKIE, "")
    return ZoneInfo(name) if name in known_zones() else None
