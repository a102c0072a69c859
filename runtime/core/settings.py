"""The settings of a job version: how often it checkpoints, how patient it is. Times are milliseconds.

One value for three readers: the console checks what people type and draws the form, the job master obeys. What a
setting does is decided by the machines that it is handed to.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from runtime.core.checkpoint import CheckpointMode
from runtime.core.coordinator import CoordinatorSettings
from runtime.core.restart import RestartStrategy


class JobSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Defaults are those of a job that nobody has tuned."""

    checkpoint_mode: CheckpointMode = CheckpointMode.EXACTLY_ONCE
    checkpoint_interval_ms: Annotated[int, Meta(ge=100, le=86_400_000)] = 5000
    checkpoint_timeout_ms: Annotated[int, Meta(ge=1000, le=86_400_000)] = 60_000
    min_pause_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 500
    max_concurrent_checkpoints: Annotated[int, Meta(ge=1, le=100)] = 1
    tolerable_failed_checkpoints: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None  #: None: as many as may come
    retained_checkpoints: Annotated[int, Meta(ge=1, le=1000)] = 5
    restart_attempts: Annotated[int, Meta(ge=0, le=1_000_000)] = 10
    restart_delay_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 1000
    heartbeat_timeout_ms: Annotated[int, Meta(ge=1000, le=3_600_000)] = 10_000

    @property
    def coordinator(self) -> CoordinatorSettings:
        return CoordinatorSettings(
            interval_ms=self.checkpoint_interval_ms,
            timeout_ms=self.checkpoint_timeout_ms,
            min_pause_ms=self.min_pause_ms,
            max_concurrent=self.max_concurrent_checkpoints,
            mode=self.checkpoint_mode,
            tolerable_failures=self.tolerable_failed_checkpoints,
        )

    @property
    def restart(self) -> RestartStrategy:
        return RestartStrategy(attempts=self.restart_attempts, delay_ms=self.restart_delay_ms)
