"""Click events with fifty columns, as analytics collectors write them. A row in twenty is delivered twice.

A row that repeats another row has all its values, the event time included. It follows within 5 s.
"""

from typing import Final

from benchmarks.datasets.table import Table, event_time

US_PER_ROW: Final = 200_000
#: The row that row `id` repeats, or itself. Repeated rows are neither late nor repetitions.
_SOURCE: Final = "case when id % 20 = 7 and id > 40 then id - 1 - mixed(id, 18) % 2 * 20 else id end"
_NAMES: Final = {
    "country": 60, "region": 500, "city": 5_000, "language": 40, "browser": 12, "browser_version": 200, "os": 8,
    "os_version": 60, "device": 400, "screen": 50, "channel": 9, "campaign": 300, "medium": 6, "experiment": 30,
    "variant": 4, "page_type": 25, "section": 80, "author": 900, "currency": 20, "payment_method": 7,
}  # fmt: skip
_COUNTS: Final = {
    "viewport_width": 4_000, "viewport_height": 3_000, "scroll_depth": 101, "clicks": 40, "load_ms": 20_000,
    "render_ms": 9_000, "dns_ms": 500, "connect_ms": 800, "bytes_sent": 100_000, "bytes_received": 4_000_000,
    "cart_items": 12, "session_events": 300,
}  # fmt: skip
_MEASURES: Final = ("latitude", "longitude", "price", "discount", "tax", "score", "visible_share", "fps")
_FLAGS: Final = ("is_mobile", "is_bot", "is_logged_in", "has_consent")

_COLUMNS: Final[dict[str, tuple[str, str]]] = {
    "event_id": ("string", "uuid_text('event', id)"),
    "event_time": ("timestamp", event_time(US_PER_ROW)),
    "user_id": ("string", "uuid_text('user', mixed(id, 1) % 100003)"),
    "session_id": ("string", "uuid_text('session', id // 64)"),
    "url": ("string", "'https://example.org/articles/' || mixed(id, 2) % 20011 || '?ref=' || mixed(id, 3) % 97"),
    "referrer": ("string", "case when mixed(id, 4) % 3 > 0 then 'https://example.com/' || mixed(id, 4) % 997 end"),
    **{
        name: ("string", f"'{name}-' || mixed(id, {20 + number}) % {values}")
        for number, (name, values) in enumerate(_NAMES.items())
    },
    **{
        name: ("bigint", f"mixed(id, {50 + number}) % {values}")
        for number, (name, values) in enumerate(_COUNTS.items())
    },
    **{name: ("double", f"mixed(id, {70 + number}) / 64.0") for number, name in enumerate(_MEASURES)},
    **{name: ("boolean", f"mixed(id, {90 + number}) % 2 = 0") for number, name in enumerate(_FLAGS)},
}

TABLES: Final = {"clicks": Table(columns=_COLUMNS, source=_SOURCE, has_late_rows=True)}
