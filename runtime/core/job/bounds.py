"""The bounds of settings. Settings given in Python and the settings of a version in the console share them.

Two floors are higher in the console (`settings.JobSettings`), where the checkpoints of all jobs share a database.
"""

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from runtime.errors import JobRejected

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * _HOUR_MS

IntervalMs = Annotated[int, Meta(ge=1, le=DAY_MS)]
TimeoutMs = Annotated[int, Meta(ge=1, le=DAY_MS)]
PauseMs = Annotated[int, Meta(ge=0, le=DAY_MS)]
AlignmentTimeoutMs = Annotated[int, Meta(ge=0, le=DAY_MS)]
ConcurrentCheckpoints = Annotated[int, Meta(ge=1, le=100)]
FailureCount = Annotated[int, Meta(ge=0, le=1_000_000)]
DelayMs = Annotated[int, Meta(ge=0, le=_HOUR_MS)]
InitialBackoffMs = Annotated[int, Meta(ge=1, le=_HOUR_MS)]
MaxBackoffMs = Annotated[int, Meta(ge=1, le=DAY_MS)]
BackoffMultiplier = Annotated[float, Meta(ge=1, le=100)]
ResetAfterMs = Annotated[int, Meta(ge=1, le=30 * DAY_MS)]
Jitter = Annotated[float, Meta(ge=0, le=1)]


def check_bounds(settings: "DataclassInstance") -> None:
    """Raises JobRejected, naming the field, if the value of a field does not fit the type and bounds of the field."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        try:
            msgspec.convert(value, field.type)
        except msgspec.ValidationError as error:
            expected = str(error).replace("Expected", "expected", 1)
            raise JobRejected("bad-settings", field.name, f"must not be {value!r}: {expected}") from None
