"""Pool member: a process or thread that runs slots, a slot per attempt, until the master dismisses it.

Executors import this module, so it needs neither the job master nor a database. A member has a control connection of
its own to the pool, fenced by the token of the attempt for which the pool was launched.
"""

import os
import queue
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from runtime.access.redaction import redact
from runtime.core.job.ids import Token
from runtime.io.control.endpoints import ControlClient, Hello

if TYPE_CHECKING:
    from runtime.ports import Exchange, ExchangeListener

_MAX_DETAIL_CHARACTERS: Final = 1_000

MemberTask = Callable[[Iterable[int]], Iterator[int]]


class StartSlot(msgspec.Struct, frozen=True):
    """To a pool member: run slot `slot` of attempt `token`."""

    slot: int
    token: int
    secret: str
    master: str


class SlotExited(msgspec.Struct, frozen=True, tag=True):
    """From a pool member: its slot has exited, with its connections and threads."""


class PoolMemberFailed(msgspec.Struct, frozen=True, tag=True):
    """From a pool member: it has failed and runs no further slots."""

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPoolAddress:
    """Address and credentials of the pool, passed to each member at its start."""

    token: Token
    secret: str
    master: str


def serve_slots(address: SlotPoolAddress, number: int, run: Callable[[StartSlot], None]) -> None:
    """Runs slots until the master closes the connection. `run` runs a slot and returns when the slot has exited.

    `number`: of the member. The master admits each number once, so a task that Spark repeats runs no slot.
    """
    inbox: queue.SimpleQueue[StartSlot | None] = queue.SimpleQueue()
    hello = Hello(
        token=address.token,
        secret=address.secret,
        slot=number,
        pid=os.getpid(),
        host=socket.gethostname(),
        address="",
    )
    master = ControlClient(
        address.master, hello, StartSlot, on_message=inbox.put, on_lost=lambda reason: inbox.put(None)
    )
    try:
        while (start := inbox.get()) is not None:
            run(start)
            master.send(SlotExited())
    except Exception as error:
        master.send(PoolMemberFailed(redact(repr(error))[:_MAX_DETAIL_CHARACTERS]))
        raise
    finally:
        master.close()


def local_address(peer: str) -> str:
    """Address of this machine on the route to `peer`. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))
        return str(probe.getsockname()[0])


def member_task(address: SlotPoolAddress, job: bytes) -> MemberTask:
    """Function for `mapPartitions`: runs the member with each number of its input, and returns the number.

    Each attempt loads `job` (pickled) anew, so that it starts in the same state in a new and in an old process.
    """

    def task(numbers: Iterable[int]) -> Iterator[int]:
        for number in numbers:
            _run_member(address, job, number)
            yield number

    return task


def _run_member(address: SlotPoolAddress, job: bytes, number: int) -> None:
    # Modules that a fork of Spark's daemon may not inherit: gRPC starts threads.
    from pyspark import cloudpickle

    from runtime.io import logs
    from runtime.io.filesystem import FileStore
    from runtime.io.socket_exchange import SocketExchange
    from runtime.kernels.loading import native
    from runtime.slot import process_tuning
    from runtime.slot.slot import SlotConfig, run_slot

    def exchange(slot: int, token: Token, secret: str, listener: "ExchangeListener") -> "Exchange":
        host = local_address(address.master.rsplit(":", 1)[0])
        return SocketExchange(slot, token, secret, listener, host=host)

    def run(start: StartSlot) -> None:
        config = SlotConfig(
            index=start.slot,
            token=Token(start.token),
            secret=start.secret,
            master=start.master,
            job=cloudpickle.loads(job),
            has_own_process=True,
        )
        process_tuning.freeze_heap()
        run_slot(config, exchange, FileStore)

    logs.configure()
    native()  # before the slot connects: the first compilation on a machine takes longer than a heartbeat may
    serve_slots(address, number, run)
