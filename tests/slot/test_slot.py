"""A slot that fails, before a master that is played by the test over a real control connection."""

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
import structlog
from structlog.testing import LogCapture

from runtime.access.secrets import resolve
from runtime.connectors.sinks.print import PrintSink
from runtime.core.job.ids import ChannelId, CheckpointId, SubtaskId, Token
from runtime.core.job.messages import Barrier, CheckpointKind
from runtime.core.restore.state_assignment import SubtaskRestore
from runtime.core.snapshot.commit import CommitPermit
from runtime.core.snapshot.control import CheckpointAborted, TriggerSubtask
from runtime.dataflow.builder import Dataflow
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected
from runtime.io.control.endpoints import ControlClient, ControlServer
from runtime.io.control.messages import (
    ChannelBroken,
    ConfirmCheckpoint,
    Deploy,
    Deployed,
    Heartbeat,
    OperationTaken,
    Shutdown,
    SlotFailed,
    Start,
    ToMaster,
)
from runtime.io.filesystem import FileStore
from runtime.io.memory.exchange import MemoryExchange, MemoryHub
from runtime.ports import ExchangeListener, OperatorContext, SourceReader
from runtime.slot import slot as worker
from runtime.slot.slot import Slot, SlotConfig
from tests.starved_threads import starved
from tests.waiting import until

TOKEN: Final = Token(1)
PATIENCE_S: Final = 60.0


@dataclass
class Failing:
    """A source that fails when it is read, or made, and notes what it is asked for afterwards."""

    error: Exception
    when_made: bool = False
    calls: list[str] = field(default_factory=list)
    guarantee = "exactly-once"
    bounded = False

    def reader(self) -> SourceReader:
        if self.when_made:
            raise self.error
        return FailingReader(self)

    def check(self) -> None:
        return None


class FailingReader(SourceReader):
    def __init__(self, source: Failing) -> None:
        self._source = source

    def open(self, context: OperatorContext) -> None:
        return None

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        raise self._source.error

    @property
    def exhausted(self) -> bool:
        return False

    def snapshot(self, checkpoint: int) -> None:
        self._source.calls.append(f"snapshot {checkpoint}")

    def checkpoint_completed(self, permit: CommitPermit) -> None:
        self._source.calls.append(f"completed {permit.checkpoint}")


class Master:
    """Deploys one slot and hears it."""

    def __init__(self, source: Failing, storage: Path, **options: Any) -> None:
        self.heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.lost = threading.Event()
        self.control = ControlServer(
            TOKEN,
            "secret",
            ToMaster,
            on_hello=lambda slot, hello: self.heard.put(hello),
            on_message=lambda slot, message: self.heard.put(message),
            on_lost=lambda slot, reason: self.lost.set(),
        )
        flow = Dataflow("failing")
        flow.source("fails", source).sink("out", PrintSink())
        self.job = flow.compile(1)
        address = self.control.address
        config = SlotConfig(index=0, token=TOKEN, secret="secret", master=address, job=self.job, **options)
        self.thread = threading.Thread(target=self._slot, args=(config,), daemon=True)
        self.thread.start()
        self.heard.get(timeout=PATIENCE_S)
        restored = [SubtaskRestore(subtask=subtask) for subtask in self.job.graph.subtasks]
        self.send(Deploy("job", str(storage), {0: ""}, restored), Start())

    def _slot(self, config: SlotConfig) -> None:
        hub = MemoryHub()

        def exchange(slot: int, token: Token, secret: str, listener: ExchangeListener) -> MemoryExchange:
            self.listener = listener
            return MemoryExchange(hub, slot, token, listener, secret)

        Slot(config, exchange, FileStore).run()

    def send(self, *messages: Any) -> None:
        for message in messages:
            self.control.send(0, message)

    def failure(self) -> SlotFailed:
        while not isinstance(message := self.heard.get(timeout=PATIENCE_S), SlotFailed):
            assert not isinstance(message, Heartbeat) or self.thread.is_alive()
        return message

    def close(self) -> None:
        self.control.close()
        self.thread.join(PATIENCE_S)


@pytest.fixture
def masters() -> Iterator[list[Master]]:
    masters: list[Master] = []
    yield masters
    for master in masters:
        master.close()


def test_a_slot_without_a_thread_for_heartbeats_fails_at_once(
    tmp_path: Path, masters: list[Master], monkeypatch: pytest.MonkeyPatch
) -> None:
    with starved(monkeypatch, "heartbeat"):
        masters.append(Master(Failing(DataRejected("never read")), tmp_path))
        assert "no thread is free for heartbeat" in masters[0].failure().detail


@pytest.mark.parametrize("when_made", [False, True])
@pytest.mark.parametrize(
    ("error", "final"),
    [
        (DataRejected("row 3"), True),
        (JobRejected("bad-path", "path", "row 3"), True),
        (EnvironmentFailure("row 3"), False),
        (OSError(24, "row 3"), False),
    ],
)
def test_a_failure_names_its_operator_and_says_whether_trying_again_can_help(
    error: Exception, final: bool, when_made: bool, masters: list[Master], tmp_path: Path
) -> None:
    """S1-04: some errors pass, others are final."""
    master = Master(Failing(error, when_made), tmp_path)
    masters.append(master)
    failure = master.failure()
    assert failure.operator == "fails"
    assert "operator 'fails', subtask 0" in failure.detail
    assert "row 3" in failure.detail
    assert failure.is_final is final
    assert ("SubtaskStarted()" in failure.events) is not when_made


def test_a_failure_that_names_a_file_whose_name_is_no_text_reaches_the_master(
    masters: list[Master], tmp_path: Path
) -> None:
    """S1-04: file systems allow such names; what quotes one must not cost the failure its finality."""
    name = b"caf\xe9.csv".decode(errors="surrogateescape")
    master = Master(Failing(DataRejected(f"{name}, row 3")), tmp_path)
    masters.append(master)
    failure = master.failure()
    assert failure.is_final
    assert r"caf\udce9.csv, row 3" in failure.detail


def test_a_failed_slot_takes_no_snapshot_and_commits_nothing(masters: list[Master], tmp_path: Path) -> None:
    """S2-36: nothing that it held may count; it only waits to be told to go."""
    source = Failing(ValueError("no"))
    master = Master(source, tmp_path)
    masters.append(master)
    master.failure()
    reads = SubtaskId(master.job.graph.operators[0].uid, 0)
    barrier = Barrier(CheckpointId(1), CheckpointKind.CHECKPOINT, 0)
    master.send(
        TriggerSubtask(reads, barrier),
        ConfirmCheckpoint(CheckpointId(1)),
        CheckpointAborted(CheckpointId(2)),
        Shutdown(),
    )
    master.thread.join(PATIENCE_S)
    assert not master.thread.is_alive()
    assert source.calls == []


def test_a_failed_slot_goes_when_its_master_is_gone(masters: list[Master], tmp_path: Path) -> None:
    master = Master(Failing(ValueError("no")), tmp_path, shutdown_timeout_s=10 * PATIENCE_S)
    masters.append(master)
    master.failure()
    master.control.close()
    master.thread.join(PATIENCE_S)
    assert not master.thread.is_alive()


def test_the_log_of_a_slot_names_the_operation_and_its_request(
    masters: list[Master], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator who searches the logs for the id of a request finds the slots too."""
    logged = LogCapture()
    level = structlog.make_filtering_bound_logger("info")
    monkeypatch.setattr(worker, "log", structlog.wrap_logger(None, [logged], wrapper_class=level))
    master = Master(Failing(DataRejected("row 3")), tmp_path)
    masters.append(master)
    fields = {"operation": "d", "kind": "drain", "request_id": "f00d"}
    master.send(OperationTaken(fields))
    until(lambda: {"event": "operation taken", "log_level": "info", "slot": 0, **fields} in logged.entries)


class ConnectingReader(FailingReader):
    """As an author's client does, it quotes the address in its error."""

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        address = resolve("url", "postgresql://app:${secret:orders}@db/orders", ())
        raise KeyError(f"no way to {address}")


class Connecting(Failing):
    def reader(self) -> SourceReader:
        return ConnectingReader(self)


def test_a_failure_does_not_quote_a_secret_that_the_slot_has_resolved(
    masters: list[Master], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEIR_SECRET_ORDERS", "fish-and-chips")
    masters.append(master := Master(Connecting(ValueError()), tmp_path))
    failure = master.failure()
    assert "no way to postgresql://app:********@db/orders" in failure.detail
    assert "app:********@db" in failure.traceback
    assert "fish-and-chips" not in repr(failure)


class Costly:
    """A value of user code that is slow to print, as a large state is."""

    printed = 0

    def __repr__(self) -> str:
        Costly.printed += 1
        return "costly"


class CostlyReader(FailingReader):
    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        ballast = Costly()
        raise ValueError("x" * 1_000_000) if ballast else RuntimeError


class CostlySource(Failing):
    def reader(self) -> SourceReader:
        return CostlyReader(self)


def test_a_failure_is_reported_before_it_is_logged_and_without_local_variables(
    masters: list[Master], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rendering every local variable of every frame took 36 s under load, and the master waited for it."""
    order: list[str] = []
    send = ControlClient.send

    class Log:
        def __getattr__(self, level: str) -> Any:
            return lambda event, **facts: order.append(f"log {event} {max(len(str(v)) for v in facts.values())}")

    def noted(client: Any, message: Any) -> None:
        send(client, message)
        if isinstance(message, SlotFailed):
            order.append("report")

    monkeypatch.setattr(worker, "log", Log())
    monkeypatch.setattr(ControlClient, "send", noted)
    Costly.printed = 0
    master = Master(CostlySource(ValueError()), tmp_path)
    masters.append(master)
    failure = master.failure()
    until(lambda: len(order) == 2)
    assert order == ["report", "log slot failed 10"], "no longer than the name of the error"
    assert len(failure.detail) == worker.MAX_DETAIL_CHARACTERS
    assert Costly.printed == 0


class Waiting(Failing):
    """A source without rows."""

    def reader(self) -> SourceReader:
        return WaitingReader(self)


class WaitingReader(FailingReader):
    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        return None


@pytest.mark.parametrize("is_own", [True, False])
def test_a_slot_that_cannot_send_blames_itself(is_own: bool, tmp_path: Path, masters: list[Master]) -> None:
    """A restart of its peer would not help. The peer names the channel only, and has no better reason."""
    master = Master(Waiting(ValueError()), tmp_path)
    masters.append(master)
    while not isinstance(master.heard.get(timeout=PATIENCE_S), Deployed):
        pass
    master.listener.on_lost(ChannelId(0, 0, 1), "cannot be sent: no memory", is_own)
    if is_own:
        assert "broke: cannot be sent: no memory" in master.failure().detail
        return
    while not isinstance(message := master.heard.get(timeout=PATIENCE_S), ChannelBroken):
        assert not isinstance(message, SlotFailed)
    assert message.peer == 1
