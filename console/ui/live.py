"""The live numbers of a run as typed values. The master writes them as JSON; what it left out has a default here."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec
import structlog
from msgspec import Meta

log = structlog.get_logger(__name__)


class SubtaskLive(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    state: str = "running"
    records_in: int = 0
    records_out: int = 0
    watermark: int | None = None


class OperatorLive(msgspec.Struct, frozen=True, kw_only=True):
    """Rates are per second, `watermark` is event time in ms, `busy` and `backpressured` are shares of time."""

    state: str = "running"
    records_in: int = 0
    records_out: int = 0
    rate_in: float = 0.0
    rate_out: float = 0.0
    watermark: int | None = None
    busy: float = 0.0
    backpressured: float = 0.0
    subtasks: tuple[SubtaskLive, ...] = ()

    @property
    def finished(self) -> bool:
        return self.state == "finished"


class SlotLive(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    pid: int | None = None
    host: str = ""
    address: str = ""
    executor: str = ""
    log: str = ""
    memory_bytes: int | None = None  #: resident, of its process
    memory_bound_bytes: int | None = None
    seen_ms_ago: float | None = None


class CheckpointLive(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint under way."""

    number: int
    acknowledged: int = 0
    subtasks: int = 0
    kind: str = "checkpoint"


class WaitingLive(msgspec.Struct, frozen=True):
    """Slots that a run waits for. `held_by`: who has the others, or why there are none, as far as is known."""

    wanted: int
    there: int
    held_by: str = ""


class StageLive(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of the plan of a run in BATCH. Records are those of finished tasks. None: not known yet."""

    number: int
    name: str = ""
    operators: tuple[str, ...] = ()
    state: str = ""
    tasks: int | None = None
    tasks_done: int = 0
    tasks_failed: int | None = None
    records_read: int = 0
    records_written: int = 0
    duration_ms: float | None = None

    @property
    def is_complete(self) -> bool:
        return self.state == "complete"


class BatchLive(msgspec.Struct, frozen=True, kw_only=True):
    """Of a run in BATCH: the stages of its plan. `tasks`: of the stages whose number of tasks is known."""

    stages: tuple[StageLive, ...] = ()
    tasks: int = 0
    tasks_done: int = 0
    tasks_failed: int = 0  #: tries

    @property
    def stages_done(self) -> int:
        return sum(stage.is_complete for stage in self.stages)

    @property
    def is_open(self) -> bool:
        """Whether more tasks may come: Spark decides how many a DataFrame has."""
        return any(stage.tasks is None for stage in self.stages)


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """`at` is when the master wrote it, a column of its own; `flowing` is false where no records flow now."""

    operators: dict[str, OperatorLive] = {}
    slots: tuple[SlotLive, ...] = ()
    checkpoint: CheckpointLive | None = None
    counters: dict[str, int] = {}
    restarts: int = 0
    waiting: WaitingLive | None = None
    batch: BatchLive | None = None
    parallelism: int | None = None
    at: datetime | None = None
    flowing: bool = True
    spark_ui: Annotated[str, Meta(pattern="^(https?://.*)?$")] = ""


NOTHING_LIVE = Live()


def parse(raw: Mapping[str, Any] | None, at: datetime | None) -> Live:
    """The numbers in `raw`; none at all when it has another shape, since a page must not fail over a picture."""
    if not raw:
        return NOTHING_LIVE
    try:
        return msgspec.structs.replace(msgspec.convert(raw, Live, strict=False), at=at)
    except msgspec.ValidationError as error:
        log.warning("live-numbers-unreadable", error=str(error))
        return NOTHING_LIVE
