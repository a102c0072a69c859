"""What an attempt is told, what starts its slots, and how it can end: words shared by job master and attempt."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from runtime.blueprint import CompiledJob
from runtime.core.checkpoint import Manifest
from runtime.core.coordinator import CoordinatorSettings
from runtime.core.ids import SubtaskId, Token
from runtime.core.recovery import Restored
from runtime.core.restart import SLOT_OUT_OF_MEMORY
from runtime.hosts.protocol import Failed
from runtime.hosts.shared_folders import Marker


class SlotPhase(StrEnum):
    """How far a launcher has come with the slots that it was asked for."""

    OPENING = "opening"  #: the connection to the cluster is being made
    WAITING = "waiting"  #: the cluster has fewer slots than the job needs
    STARTING = "starting"  #: the slots' processes are being started
    READY = "ready"  #: every process stands, or cannot be started: `launch` reports the error


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatus:
    """`held_by` names who holds the cluster's other slots or why they are missing; "" where it is not known."""

    phase: SlotPhase
    wanted: int = 0
    there: int = 0
    held_by: str = ""
    missing: tuple[int, ...] = ()  #: slots whose process has not connected

    def __str__(self) -> str:
        return f"{self.wanted} wanted, {self.there} there" + (f", {self.held_by}" if self.held_by else "")


class Launcher(Protocol):
    """Starts and ends the processes or threads that slots run in."""

    @property
    def usable(self) -> bool:
        """False when this process can start no slots any more, and only a fresh one could."""

    @property
    def spans_hosts(self) -> bool:
        """Whether slots may run on other hosts than this process, which may have other folders."""

    @property
    def ui_address(self) -> str:
        """Where a page shows what the slots run in; "" where there is none, or not yet."""

    def prepare(self, job: CompiledJob, token: Token) -> None:
        """Begins to start what slots of this attempt will run in, unless it rests; returns at once.

        To start processes takes seconds, which need not be waited for where something else is waited for anyway.
        """

    def status(self) -> SlotStatus:
        """How far the slots of the last `prepare` have come. Never blocks for long; asked several times a second."""

    def launch(
        self, job: CompiledJob, token: Token, secret: str, master: str, ended: Callable[[str | None], None]
    ) -> None:
        """Starts `job.graph.parallelism` slots, where those of the last launch ran if they rest; returns at once.

        `ended` hears that a slot has ended, told to or not, or that what they run in is gone, and why.
        """

    def rest(self) -> None:
        """Keeps what the slots of the last launch ran in, which were told to end, for the next launch.

        Where they do not within seconds, it is as `stop`.
        """

    def stop(self) -> None:
        """Ends whatever slots run in, however they are. Returns when it is gone or cannot be waited for."""


class OutcomeKind(StrEnum):
    ENDED = "ended"
    FAILED = "failed"
    CANCELED = "canceled"
    RELEASED = "released"
    SUPERSEDED = "superseded"
    BROKEN = "broken"  #: this process can start no slots any more


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt came to its end. `final`: trying again cannot help."""

    kind: OutcomeKind
    detail: str = ""
    operator: str = ""
    final: bool = False
    story: tuple[str, ...] = ()
    savepoint: Manifest | None = None  #: of a completed stop or drain
    progressed: bool = False  #: a checkpoint was completed
    ran_ms: int = 0  #: since every subtask ran
    damaged: str = ""  #: a file of the checkpoint that was to be restored is missing or altered
    error: str = ""  #: of a programming error: equal for the same code at the same record
    outage: bool = False  #: storage or a service is away: it is waited for, and no restart is counted
    code: str = ""  #: a stable word for why it failed, where there is one
    intact: bool = False  #: no slot was lost or hangs, as far as is known


def failed_by(said: Failed) -> Outcome:
    """The outcome of an attempt in which a slot reported its own failure: it is there, and so are the others.

    A process that has exceeded its memory is replaced: an allocator does not give everything back.
    """
    return Outcome(
        OutcomeKind.FAILED,
        said.detail,
        said.operator,
        said.final,
        tuple(said.story),
        damaged=said.damaged,
        error=said.error,
        outage=said.outage,
        code=said.code,
        intact=said.code != SLOT_OUT_OF_MEMORY,
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
    restored: Mapping[SubtaskId, Restored]
    restarts: int
    facts: Mapping[str, Any] = field(default_factory=dict)  #: of the run, for each live report; they may change
    markers: Sequence[Marker] = ()  #: left for slots on other hosts, removed once every slot is deployed
    first: bool = False  #: the run has not run yet
    slot_memory_bytes: int | None = None  #: bound on the resident memory of each slot's process
