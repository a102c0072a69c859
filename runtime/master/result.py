"""The result of an attempt, and the configuration that the job master gives it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from runtime.core.job.ids import SubtaskId, Token
from runtime.core.job.restart_strategy import SLOT_OUT_OF_MEMORY_CODE
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.restore.state_assignment import SubtaskRestore
from runtime.core.snapshot.manifest import Manifest
from runtime.dataflow.plan import CompiledJob
from runtime.io.control.messages import Marker, SlotFailed


class AttemptResultKind(StrEnum):
    ENDED = "ended"
    FAILED = "failed"
    CANCELED = "canceled"
    RELEASED = "released"
    SUPERSEDED = "superseded"
    BROKEN = "broken"  #: this process can start no more slots


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """Result of an attempt. `is_final`: a retry cannot help."""

    kind: AttemptResultKind
    detail: str = ""
    operator: str = ""
    is_final: bool = False
    events: tuple[str, ...] = ()
    savepoint: Manifest | None = None  #: of a completed stop or drain
    has_progressed: bool = False  #: completed a checkpoint
    ran_ms: int = 0  #: since all subtasks were running
    damaged_file: str = ""  #: file of the checkpoint to restore that is missing or altered
    fingerprint: str = ""  #: fingerprint of a programming error: equal for the same code at the same record
    is_outage: bool = False  #: storage or a service is unavailable: waited out, and no restart is counted
    code: str = ""  #: stable failure code; may be empty
    is_intact: bool = False  #: no slot is known to be lost or to hang


def result_of_failure(failure: SlotFailed) -> AttemptResult:
    """Outcome of an attempt in which a slot reported its own failure; all slots are still connected.

    A process that exceeded its memory bound is replaced: an allocator does not return all of its memory.
    """
    return AttemptResult(
        AttemptResultKind.FAILED,
        failure.detail,
        failure.operator,
        failure.is_final,
        tuple(failure.events),
        damaged_file=failure.damaged_file,
        fingerprint=failure.fingerprint,
        is_outage=failure.is_outage,
        code=failure.code,
        is_intact=failure.code != SLOT_OUT_OF_MEMORY_CODE,
    )


@dataclass(frozen=True, kw_only=True)
class AttemptConfig:
    job_id: str
    token: Token
    job: CompiledJob
    storage: str
    host: str
    settings: CoordinatorSettings
    heartbeat_timeout_ms: int
    slot_start_timeout_ms: int
    restored: Mapping[SubtaskId, SubtaskRestore]
    restarts: int
    facts: Mapping[str, Any] = field(default_factory=dict)  #: entries for each live report; they may change
    markers: Sequence[Marker] = ()  #: for slots on other hosts; removed once every slot is deployed
    is_first_start: bool = False  #: first start of the run
    slot_memory_bytes: int | None = None  #: bound on the resident memory of each slot's process
