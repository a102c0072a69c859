"""Port of the job master: the launcher of slots, and its progress."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from runtime.core.job.ids import Token
from runtime.dataflow.plan import CompiledJob
from runtime.io.control.connection import CLOSED_BY_PEER


class SlotPhase(StrEnum):
    """Progress of a launcher with the requested slots."""

    OPENING = "opening"  #: connecting to the cluster
    WAITING = "waiting"  #: the cluster has fewer slots than the job needs
    STARTING = "starting"  #: the slots' processes are starting
    READY = "ready"  #: every process runs, or failed to start: `launch` reports the error


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatus:
    """`shortage_cause`: holders of the cluster's other slots, or the cause of the shortage; "" if unknown."""

    phase: SlotPhase
    wanted: int = 0
    available: int = 0
    shortage_cause: str = ""
    connected: int = 0  #: processes that stand by for a slot, or run one

    def __str__(self) -> str:
        return f"{self.wanted} wanted, {self.available} there" + (
            f", {self.shortage_cause}" if self.shortage_cause else ""
        )


def describe_loss(reason: str, memory_bytes: int = 0) -> str:
    """The loss of a slot's process as text. `memory_bytes`: its memory at its last heartbeat; 0: unknown.

    A slot that fails reports its error first. A connection that ends without one is of a process that was killed or has
    crashed; Linux kills by SIGKILL when memory is exhausted. The exit status is known to Spark's daemon only.
    """
    if reason != CLOSED_BY_PEER:
        return reason
    used = f", and used {memory_bytes >> 20} MB of memory at its last heartbeat" if memory_bytes else ""
    end = "it was killed, as Linux does when memory runs out, or crashed"
    return f"{reason}. Its process reported no error{used}: {end}"


class Launcher(Protocol):
    """Starts and ends the processes or threads that slots run in."""

    @property
    def loss(self) -> str:
        """Why this process can start no more slots and only a fresh process could; "" while it can."""

    @property
    def spans_hosts(self) -> bool:
        """Whether slots may run on other hosts than this process, where folders may differ."""

    @property
    def ui_address(self) -> str:
        """URL of the cluster's page about the slots; "" if there is none, or not yet."""

    @property
    def application(self) -> str:
        """Spark's id of the application that runs the slots; "" if there is none, or not yet."""

    def prepare(self, job: CompiledJob, token: Token) -> None:
        """Begins to start the processes for slots of this attempt, unless idle processes exist. Returns at once.

        Start-up takes seconds, which overlap with other preparations of the attempt.
        """

    def status(self) -> SlotStatus:
        """Progress of the last `prepare`. Never blocks for long; polled several times a second."""

    def launch(
        self, job: CompiledJob, token: Token, secret: str, master: str, ended: Callable[[int | None, str], None]
    ) -> None:
        """Starts `job.graph.parallelism` slots, in idle processes of the last launch if there are any. Returns at once.

        Slots that were kept continue. `ended` is called with slot and reason when a slot exits, requested or not, and
        when its process is lost; with None if the slot is unknown.
        """

    def rest(self, lost_slot: int | None, kept: Collection[int] = ()) -> None:
        """Keeps the processes of the last launch for the next launch. The slots `kept` run on, all others must exit.

        Replaced are the process of `lost_slot`, which hangs or must run no other slot, processes whose slots do not
        exit within seconds, and processes that have not connected.
        """

    def stop(self) -> None:
        """Ends all slot processes, in any condition. Returns when they are gone or cannot be waited for."""
