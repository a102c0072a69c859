"""The settings of a job version, as people give them: checked against the runtime's own description of them."""

from typing import Any, Final

import msgspec

from console.jobs.inputs import parsed
from runtime.core.settings import JobSettings

#: The settings as JSON schema: types, bounds, defaults and what each does. The form and the API's document show it.
SCHEMA: Final[dict[str, Any]] = msgspec.json.schema(JobSettings)


def parse(given: dict[str, Any]) -> JobSettings:
    """The settings with defaults filled in.

    Raises:
        Refused: naming the setting that is unknown or out of bounds.
    """
    return parsed(given, JobSettings, "settings")
