"""The settings of a job version, as the console stores them in JSON, and what each part of the runtime makes of them.

All times are milliseconds. Defaults are those of a job that wants second-level recovery on one machine.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from runtime.core.coordinator import CoordinatorSettings
from runtime.core.recovery import RestartStrategy
from runtime.errors import JobRejected

Ms = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class JobSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Unknown keys are left to newer versions."""

    checkpoint_interval_ms: Annotated[int, msgspec.Meta(ge=10)] = 5_000
    checkpoint_timeout_ms: Annotated[int, msgspec.Meta(ge=10)] = 60_000
    min_pause_ms: Ms = 500
    retained_checkpoints: Positive = 5
    restart_attempts: Ms = 10
    restart_delay_ms: Ms = 1_000
    heartbeat_timeout_ms: Annotated[int, msgspec.Meta(ge=1_000)] = 10_000

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> "JobSettings":
        """Raises JobRejected naming the setting."""
        try:
            return msgspec.convert(dict(raw), cls)
        except msgspec.ValidationError as error:
            raise JobRejected("bad-settings", "settings", str(error)) from error

    @property
    def coordinator(self) -> CoordinatorSettings:
        return CoordinatorSettings(
            interval_ms=self.checkpoint_interval_ms,
            timeout_ms=self.checkpoint_timeout_ms,
            min_pause_ms=self.min_pause_ms,
        )

    @property
    def restart(self) -> RestartStrategy:
        return RestartStrategy(attempts=self.restart_attempts, delay_ms=self.restart_delay_ms)
