"""Card payments: text keys, ten columns, and properties from which the risk of a payment follows."""

from typing import Final

from benchmarks.datasets.table import Table, event_time

US_PER_ROW: Final = 5_000  #: whole milliseconds, which all systems keep
CARDS: Final = 1_003
#: At random: `mixed` would give the payments of a card at almost even intervals.
_CARD: Final = f"cast(md5_number_lower('card' || id) % {CARDS} as bigint)"
_COUNTRIES: Final = 60

TABLES: Final = {
    "payments": Table(
        columns={
            "payment_id": ("string", "uuid_text('payment', id)"),
            "card": ("string", f"uuid_text('card', {_CARD})"),
            "home_country": ("string", f"'country-' || mixed({_CARD}, 2) % {_COUNTRIES}"),
            "country": (
                "string",
                f"'country-' || mixed(if(mixed(id, 3) % 10 > 0, {_CARD}, id), 2) % {_COUNTRIES}",
            ),
            "merchant": ("string", "'merchant-' || mixed(id, 4) % 9973"),
            "channel": ("string", "['chip', 'contactless', 'web', 'magstripe'][1 + mixed(id, 5) % 4]"),
            "cents": ("bigint", "cast(power(10, 2 + mixed(id, 6) % 100000 / 25000.0) as bigint)"),
            "is_new_device": ("boolean", "mixed(id, 7) % 20 = 0"),
            "pin_failures": ("bigint", "greatest(mixed(id, 8) % 12 - 9, 0)"),
            "event_time": ("timestamp", event_time(US_PER_ROW)),
        },
        has_late_rows=True,
    )
}
