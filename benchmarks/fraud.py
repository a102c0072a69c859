"""The sessions of a card and their fraud score, in plain Python. Weir and Structured Streaming call these functions.

Sessions are separated by pauses of more than `GAP_MS`. A session is [first, last, payments, cents, points, largest];
times are milliseconds. Each payment has points, and the score of a session follows from its payments.
"""

from collections.abc import Mapping
from typing import Any, Final

GAP_MS: Final = 8_000
MANY_PAYMENTS: Final = 5
POINTS_PER_PAYMENT: Final = 4  #: beyond `MANY_PAYMENTS`
HIGH_TOTAL, LARGE_PAYMENT = 2_000_000, 500_000  #: cents
HIGH_TOTAL_POINTS, LARGE_PAYMENT_POINTS = 25, 15

#: Columns from which points follow.
COLUMNS: Final = ("cents", "country", "home_country", "channel", "is_new_device", "pin_failures", "merchant")

Session = list[int]


def points(row: Mapping[str, Any]) -> int:
    """The points of a payment."""
    cents: int = row["cents"]
    total = 0
    if cents >= LARGE_PAYMENT:
        total += 20
    elif cents >= 50_000:
        total += 5
    if row["country"] != row["home_country"]:
        total += 15
    if row["channel"] == "web":
        total += 3
        if row["is_new_device"]:
            total += 10
    elif row["channel"] == "magstripe":
        total += 8
    total += 5 * int(row["pin_failures"])
    if row["merchant"].endswith("7"):
        total += 2
    return total


def add(sessions: list[Session], at: int, row: Mapping[str, Any]) -> Session:
    """Adds a payment to its session, which may join others. Returns the session; it is in `sessions`."""
    cents = row["cents"]
    result = [at, at, 1, cents, points(row), cents]
    remainder = []
    for session in sessions:
        first, last, payments, total, sum_of_points, largest = session
        if first - GAP_MS <= at <= last + GAP_MS:
            result = [
                min(result[0], first),
                max(result[1], last),
                result[2] + payments,
                result[3] + total,
                result[4] + sum_of_points,
                max(result[5], largest),
            ]
        else:
            remainder.append(session)
    sessions[:] = [*remainder, result]
    return result


def score(session: Session) -> int:
    """The score of a session."""
    _, _, payments, cents, sum_of_points, largest = session
    many = POINTS_PER_PAYMENT * max(payments - MANY_PAYMENTS, 0)
    high = HIGH_TOTAL_POINTS if cents >= HIGH_TOTAL else 0
    return sum_of_points + many + high + (LARGE_PAYMENT_POINTS if largest >= LARGE_PAYMENT else 0)
