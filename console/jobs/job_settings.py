"""The settings of a job version, validated against the runtime's own definition."""

from typing import Any, Final

import msgspec

from console.jobs.inputs import convert_input
from runtime.core.job.settings import JobSettings

#: The settings as JSON schema with types, bounds, defaults and descriptions, for the form and the OpenAPI document.
SCHEMA: Final[dict[str, Any]] = msgspec.json.schema(JobSettings)


def parse(given: dict[str, Any]) -> JobSettings:
    """The settings with defaults filled in.

    Raises:
        Refused: names the setting that is unknown or out of bounds.
    """
    return convert_input(given, JobSettings, "settings")
