"""Interface between job master and attempt: configuration, launcher of slots, and outcomes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from runtime.core.job.ids import SubtaskId, Token
from runtime.core.job.restart_strategy import SLOT_OUT_OF_MEMORY_CODE
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.restore.state_assignment import SubtaskRestore
from runtime.core.snapshot.manifest import Manifest
from runtime.dataflow.plan import CompiledJob
from runtime.io.control.messages import Marker, SlotFailed


class SlotPhase(StrEnum):
    """Progress of a launcher with the requested slots."""

    OPENING = "opening"  #: connecting to the cluster
    WAITING = "waiting"  #: the cluster has fewer slots than the job needs
    STARTING = "starting"  #: the slots' processes are starting
    READY = "ready"  #: every process runs, or failed to start: `launch` reports the error


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatus:
    """`held_by`: holders of the cluster's other slots, or the cause of the shortage; "" if unknown."""

    phase: SlotPhase
    wanted: int = 0
    available: int = 0
    shortage_cause: str = ""
    missing: tuple[int, ...] = ()  #: slots whose process has not connected

    def __str__(self) -> str:
        return f"{self.wanted} wanted, {self.available} there" + (
            f", {self.shortage_cause}" if self.shortage_cause else ""
        )


class Launcher(Protocol):
    """Starts and ends the processes or threads that slots run in."""

    @property
    def is_usable(self) -> bool:
        """False once this process can start no more slots and only a fresh process could."""

    @property
    def spans_hosts(self) -> bool:
        """Whether slots may run on other hosts than this process, where folders may differ."""

    @property
    def ui_address(self) -> str:
        """URL of the cluster's page about the slots; "" if there is none, or not yet."""

    def prepare(self, job: CompiledJob, token: Token) -> None:
        """Begins to start the processes for slots of this attempt, unless idle processes exist. Returns at once.

        Start-up takes seconds, which overlap with other preparations of the attempt.
        """

    def status(self) -> SlotStatus:
        """Progress of the last `prepare`. Never blocks for long; polled several times a second."""

    def launch(
        self, job: CompiledJob, token: Token, secret: str, master: str, ended: Callable[[str | None], None]
    ) -> None:
        """Starts `job.graph.parallelism` slots, in idle processes of the last launch if there are any. Returns at once.

        `ended` is called with a reason when a slot exits, asked to or not, and when its process is lost.
        """

    def rest(self) -> None:
        """Keeps the processes of the last launch, whose slots were shut down, for the next launch.

        If the slots do not exit within seconds, it acts as `stop`.
        """

    def stop(self) -> None:
        """Ends all slot processes, in any condition. Returns when they are gone or cannot be waited for."""


class AttemptResultKind(StrEnum):
    ENDED = "ended"
    FAILED = "failed"
    CANCELED = "canceled"
    RELEASED = "released"
    SUPERSEDED = "superseded"
    BROKEN = "broken"  #: this process can start no more slots


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """Result of an attempt. `final`: a retry cannot help."""

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
