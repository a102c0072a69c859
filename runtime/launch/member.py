"""Pool member: a process or thread that runs slots, one after the other, until the master dismisses it.

Executors import this module, so it needs neither the job master nor a database. A member has a control connection of
its own to the pool, fenced by the token of the attempt for which the pool was launched.
"""

import os
import queue
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from runtime.access.data_roots import JOB_VARIABLES
from runtime.access.job_package import JobPackage, require_package
from runtime.access.redaction import redact
from runtime.core.job.ids import Token
from runtime.errors import EnvironmentFailure
from runtime.io.control.endpoints import ControlClient, Hello
from runtime.libraries import installed_versions

if TYPE_CHECKING:
    import pyarrow as pa

    from runtime.ports import Exchange, ExchangeListener

_MAX_DETAIL_CHARACTERS: Final = 1_000

MemberTask = Callable[[Iterable[int]], Iterator[int]]
ArrowTask = Callable[["Iterable[pa.RecordBatch]"], "Iterator[pa.RecordBatch]"]


class StartSlot(msgspec.Struct, frozen=True, tag=True):
    """To a pool member: run slot `slot` of attempt `token`. A kept slot continues in this attempt."""

    slot: int
    token: int
    secret: str
    master: str


class EndSlot(msgspec.Struct, frozen=True, tag=True):
    """To a pool member: end the kept slot, which no attempt continues."""


class SlotExited(msgspec.Struct, frozen=True, tag=True):
    """From a pool member: its slot has exited, with its connections and threads. `token`: of its last attempt."""

    token: int


class PoolMemberFailed(msgspec.Struct, frozen=True, tag=True):
    """From a pool member: it has failed and runs no further slots."""

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPoolAddress:
    """Address and credentials of the pool, passed to each member at its start."""

    token: Token
    secret: str
    master: str


class RunsSlot(Protocol):
    """A slot; see `slot.Slot`."""

    def run(self) -> None: ...
    def resume(self, token: Token, secret: str, master: str) -> bool: ...
    def end(self, reason: str) -> None: ...


class _Member:
    """Hands the messages of the pool to the running slot, or to the loop that runs slots."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[StartSlot | None] = queue.SimpleQueue()
        self.token = 0  #: of the last attempt of the slot
        self._slot: RunsSlot | None = None

    def run(self, slot: RunsSlot) -> None:
        self._slot = slot
        try:
            slot.run()
        finally:
            self._slot = None

    def on_message(self, message: StartSlot | EndSlot) -> None:
        slot = self._slot
        if isinstance(message, EndSlot):
            if slot is not None:
                slot.end("no attempt continues it")
        elif slot is not None and slot.resume(Token(message.token), message.secret, message.master):
            self.token = message.token
        else:
            self.inbox.put(message)

    def on_lost(self, reason: str) -> None:
        slot = self._slot
        if slot is not None:  # a kept slot has no other connection to the master
            slot.end(f"the master is gone: {reason}")
        self.inbox.put(None)


def serve_slots(address: SlotPoolAddress, number: int, open_slot: Callable[[StartSlot], RunsSlot | None]) -> None:
    """Runs slots until the master closes the connection. `open_slot` returns None if the attempt is over already.

    `number`: of the member. The master admits each number once, so a task that Spark repeats runs no slot.
    """
    member = _Member()
    hello = Hello(
        token=address.token,
        secret=address.secret,
        slot=number,
        pid=os.getpid(),
        host=socket.gethostname(),
        address="",
    )
    master = ControlClient(
        address.master, hello, StartSlot | EndSlot, on_message=member.on_message, on_lost=member.on_lost
    )
    try:
        while (start := member.inbox.get()) is not None:
            slot = open_slot(start)
            member.token = start.token
            if slot is not None:
                member.run(slot)
            master.send(SlotExited(member.token))
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


def member_task(address: SlotPoolAddress, job: bytes, package: JobPackage | None = None) -> MemberTask:
    """Function for `mapPartitions`: runs the member with each number of its input, and returns the number.

    Each attempt loads `job` (pickled) anew, so that it starts in the same state in a new and in an old process. The
    process imports the job from `package`; None: from what is installed.
    """
    versions = installed_versions()

    def task(numbers: Iterable[int]) -> Iterator[int]:
        for number in numbers:
            _check_versions(versions)
            if package is not None:
                _activate(package)
            require_package(package)
            _run_member(address, job, number)
            yield number

    return task


def arrow_task(task: MemberTask) -> ArrowTask:
    """`task` as a function for `mapInArrow`: reads and returns the number in a column `id`.

    It carries the variables of this process that bound a job: the executors of a Spark Connect server may be of another
    installation. Those of a cluster keep theirs, which may be narrower.
    """
    variables = {name: os.environ[name] for name in JOB_VARIABLES if name in os.environ}

    def run(batches: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        import pyarrow as pa

        os.environ.update(variables)
        for batch in batches:
            for number in task(batch.column(0).to_pylist()):
                yield pa.record_batch({"id": pa.array([number], pa.int64())})

    return run


def _check_versions(versions: Mapping[str, str]) -> None:
    """Raises EnvironmentFailure if this process has other versions than the job master."""
    here = installed_versions()
    if others := [name for name, version in versions.items() if version != here[name] and version and here[name]]:
        ours, theirs = (", ".join(f"{name} {each[name]}" for name in others) for each in (here, versions))
        raise EnvironmentFailure(f"the slot on {socket.gethostname()} has {ours}, and the job master has {theirs}")


def _activate(package: JobPackage) -> None:
    from runtime.io.package_cache import activate  # with a bucket, it imports a library that starts threads

    activate(package)


def _run_member(address: SlotPoolAddress, job: bytes, number: int) -> None:
    # Modules that a fork of Spark's daemon may not inherit: gRPC starts threads.
    from pyspark import cloudpickle

    from runtime.io import logs
    from runtime.io.socket_exchange import SocketExchange
    from runtime.io.store import open_store
    from runtime.kernels.loading import native
    from runtime.slot import process_tuning
    from runtime.slot.slot import SlotConfig, open_slot

    def exchange(slot: int, token: Token, secret: str, listener: "ExchangeListener") -> "Exchange":
        host = local_address(address.master.rsplit(":", 1)[0])
        return SocketExchange(slot, token, secret, listener, host=host)

    def open_in_process(start: StartSlot) -> RunsSlot | None:
        config = SlotConfig(
            index=start.slot,
            token=Token(start.token),
            secret=start.secret,
            master=start.master,
            job=cloudpickle.loads(job),
            has_own_process=True,
        )
        process_tuning.freeze_heap()
        return open_slot(config, exchange, open_store)

    logs.configure()
    native()  # before the slot connects: the first compilation on a machine takes longer than a heartbeat may
    serve_slots(address, number, open_in_process)
