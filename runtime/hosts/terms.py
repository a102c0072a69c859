"""What an attempt is told, what starts its slots, and how it can end: words shared by job master and attempt."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from runtime.blueprint import CompiledJob
from runtime.core.checkpoint import Manifest
from runtime.core.coordinator import CoordinatorSettings
from runtime.core.ids import SubtaskId, Token
from runtime.core.recovery import Restored
from runtime.hosts.protocol import Failed


class Launcher(Protocol):
    """Starts and ends the processes or threads that slots run in."""

    @property
    def usable(self) -> bool:
        """False when this process can start no slots any more, and only a fresh one could."""

    def prepare(self, job: CompiledJob, token: Token) -> None:
        """Begins to start what slots of this attempt will run in, unless it rests; returns at once.

        To start processes takes seconds, which need not be waited for where something else is waited for anyway.
        """

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
    intact: bool = False  #: no slot was lost or hangs, as far as is known


def failed_by(said: Failed) -> Outcome:
    """The outcome of an attempt in which a slot reported its own failure: it is there, and so are the others."""
    return Outcome(
        OutcomeKind.FAILED,
        said.detail,
        said.operator,
        said.final,
        tuple(said.story),
        damaged=said.damaged,
        error=said.error,
        outage=said.outage,
        intact=True,
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
    restored: Mapping[SubtaskId, Restored]
    restarts: int
    facts: Mapping[str, Any] = field(default_factory=dict)  #: of the run, for each live report; they may change
