"""The settings of a job version: how often it checkpoints, how patient it is. The job master reads them from the row.

It decides what may be set and within which bounds; what a setting does is the runtime's business.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from console.jobs.inputs import parsed


class JobSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults are those of a job that nobody has tuned."""

    checkpoint_interval_ms: Annotated[int, Meta(ge=100, le=86_400_000)] = 5000
    checkpoint_timeout_ms: Annotated[int, Meta(ge=1000, le=86_400_000)] = 60_000
    min_pause_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 500
    retained_checkpoints: Annotated[int, Meta(ge=1, le=1000)] = 5
    restart_attempts: Annotated[int, Meta(ge=0, le=1_000_000)] = 10
    restart_delay_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 1000
    heartbeat_timeout_ms: Annotated[int, Meta(ge=1000, le=3_600_000)] = 10_000
    buffer_timeout_ms: Annotated[int, Meta(ge=0, le=60_000)] = 5


def parse(given: dict[str, Any]) -> JobSettings:
    """The settings with defaults filled in.

    Raises:
        Refused: naming the setting that is unknown or out of bounds.
    """
    return parsed(given, JobSettings, "settings")
