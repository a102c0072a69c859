"""Slot: a cooperative loop that runs at most one subtask of each operator.

A turn handles the mailbox (messages, credits, commands, stored snapshots), then gives each runnable subtask a step,
downstream first; compare Flink's mailbox threading model. If barriers may overtake rows, they pass all subtasks first.
The loop never blocks for credit: a subtask without credit is not runnable. Threads exist only at the edges, for
network, heartbeat and state files.
"""

import os
import queue
import socket
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import structlog

from runtime.access.redaction import redact
from runtime.clock import SystemClock
from runtime.core.attempt.failover_regions import restarted_inputs
from runtime.core.job.ids import ChannelId, OperatorId, SubtaskId, Token
from runtime.core.job.messages import Barrier, Message
from runtime.core.job.restart_strategy import ROWS_NOT_REPEATED_CODE, SLOT_OUT_OF_MEMORY_CODE
from runtime.core.snapshot.commit import permit_from_master
from runtime.core.snapshot.control import (
    CheckpointAborted,
    FollowWatermark,
    LiveOpened,
    LogicFinished,
    ProbeSideOpened,
    SnapshotAnswer,
    SubtaskEnded,
    SubtaskReport,
    TriggerSubtask,
)
from runtime.core.snapshot.row_numbers import ProcessedRows
from runtime.core.subtask.events import CheckpointCompleted, SubtaskEvent, Triggered
from runtime.dataflow.plan import CompiledJob
from runtime.errors import (
    CorruptState,
    DataRejected,
    EnvironmentFailure,
    JobRejected,
    OperatorFailure,
    RowsNotRepeated,
    SlotOutOfMemory,
    is_outage,
)
from runtime.io.control import messages
from runtime.io.control.endpoints import ControlClient, Hello
from runtime.io.logs import escape, executor_id, log_path, traceback_text
from runtime.io.threads import start_thread
from runtime.ports import Exchange, ExchangeListener, SnapshotStore
from runtime.slot.folder_check import check_folders
from runtime.slot.memory_limit import MemoryWatch, allocation_failed_error, bound_exceeded_error, limit_allocations
from runtime.slot.process_tuning import GrowthCollector, cpu_ms, resident_bytes
from runtime.slot.programming_errors import describe_error, fingerprint
from runtime.task.deployment import Deployment
from runtime.task.task import Task

HEARTBEAT_INTERVAL_S: Final = 0.5
MAX_IDLE_WAIT_S: Final = 0.5
MAX_DETAIL_CHARACTERS: Final = 10_000  #: of a failure's text: an error may quote a whole record

log = structlog.get_logger()


ExchangeFactory = Callable[[int, Token, str, ExchangeListener], Exchange]


@dataclass(frozen=True, kw_only=True)
class SlotConfig:
    """Everything that a slot needs to connect to its master. `master` is the control address."""

    index: int
    token: Token
    secret: str
    master: str
    job: CompiledJob
    has_own_process: bool = False  #: no other slot runs in its process at the same time
    shutdown_timeout_s: float = 5.0  #: how long a failed slot waits for `Shutdown`


def open_slot(
    config: SlotConfig, exchange: ExchangeFactory, open_store: Callable[[str], SnapshotStore]
) -> "Slot | None":
    """A slot that is connected to its master; None if the attempt has ended meanwhile."""
    try:
        return Slot(config, exchange, open_store)
    except EnvironmentFailure as error:
        log.warning("slot not started", slot=config.index, reason=str(error))
        return None


class _AttemptOver(Exception):
    """The master or a peer is lost: the attempt is over for this slot."""


class _FailureReported(Exception):
    """The slot has failed, and another thread has reported the failure to the master."""


class _Listener:
    """Listener of an exchange: its calls reach the slot by mail, until the slot opens another exchange."""

    def __init__(self, put: Callable[[Callable[[], None]], None], slot: "Slot") -> None:
        self._put, self._slot = put, slot

    def on_message(self, channel: ChannelId, message: Message) -> None:
        self._post(partial(self._slot.on_message, channel, message))

    def on_credit(self, channel: ChannelId, nbytes: int) -> None:
        self._post(partial(self._slot.on_credit, channel, nbytes))

    def on_lost(self, channel: ChannelId, reason: str, is_own: bool = False) -> None:
        self._post(partial(self._slot.on_lost, channel, reason, is_own))

    def _post(self, call: Callable[[], None]) -> None:
        self._put(partial(self._forward, call))

    def _forward(self, call: Callable[[], None]) -> None:
        if self._slot.is_current(self):
            call()


class Slot:
    """Runs until a `Shutdown`, a failure, or the loss of its master. Implements `TaskHost`."""

    def __init__(
        self, config: SlotConfig, exchange: ExchangeFactory, open_store: Callable[[str], SnapshotStore]
    ) -> None:
        self._config = config
        self._open_store = open_store
        self.clock = SystemClock()
        self._mail: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._tasks: dict[SubtaskId, Task] = {}
        self._order: list[Task] = []
        self._passes_barriers = False  #: before the steps of a turn, since barriers may overtake rows
        self._job_id = ""
        self._token = config.token  #: of the attempt that the slot belongs to
        self._shutdown = False
        self._is_started = False
        self._life: Literal["attached", "detached", "over"] = "attached"  #: whether it has a master
        self._life_changed = threading.Condition()
        self._detached_from: Token | None = None  #: attempt whose master may leave
        self._snapshot_writer = ThreadPoolExecutor(1, thread_name_prefix="snapshots")
        self._compactor = ThreadPoolExecutor(1, thread_name_prefix="compaction")
        self._growth_collector = GrowthCollector()
        self._heartbeat_stopped = threading.Event()
        self._dismissed = threading.Event()  #: the master has sent `Shutdown` or `Detach`, or is lost
        self._memory_bytes: int | None = None  #: bound on the resident memory of the process
        self._memory_watch: MemoryWatch | None = None
        self._channel_loss: messages.ChannelBroken | None = None  #: the first since the exchange was opened
        self._reports_losses = True  #: the exchange belongs to the attempt of the master
        self._open_exchange = exchange
        self._secret = config.secret
        self._listener = _Listener(self._mail.put, self)
        self._exchange = exchange(config.index, config.token, config.secret, self._listener)
        try:
            self._control = self._connect(config.master, config.secret)
        except EnvironmentFailure:
            self._exchange.close()
            raise

    def _connect(self, master: str, secret: str) -> ControlClient:
        """Raises EnvironmentFailure: the master of the attempt does not answer."""
        hello = Hello(
            token=self._token,
            secret=secret,
            slot=self._config.index,
            pid=os.getpid(),
            host=socket.gethostname(),
            address=self._exchange.address,
            executor=executor_id(),
            log=log_path(),
            kept_since=self._config.token if self._is_started else None,
        )
        on_lost = partial(self._on_master_lost, self._token)
        return ControlClient(master, hello, messages.ToSlot, on_message=self._on_command, on_lost=on_lost)

    # ------------------------------------------------------------ the loop

    def run(self) -> None:
        """Blocks until the attempt is over for this slot. Reports failures of the job to the master and raises none."""
        heartbeat = threading.Thread(target=self._send_heartbeats, name="heartbeat", daemon=True)
        try:
            start_thread(heartbeat)
            try:
                self._loop()
            finally:
                self._change_life("over")
        except _AttemptOver as lost:
            log.info("slot ends", slot=self._config.index, reason=str(lost))
        except _FailureReported:
            self._wait_for_shutdown()
        except Exception as error:
            self._send_failure(error)
            self._wait_for_shutdown()
        finally:
            self._close()
            if heartbeat.is_alive():
                heartbeat.join()

    def _loop(self) -> None:
        while not self._shutdown:
            worked = False
            while not self._mail.empty():
                self._mail.get()()
                worked = True
            if self._passes_barriers:
                for task in reversed(self._order):
                    worked = task.pass_barriers() or worked
            for task in self._order:
                worked = task.step() or worked
            if not worked:
                self._wait()

    def _wait(self) -> None:
        due = (ms for task in self._order for ms in (task.poll_in_ms, task.timer_in_ms, task.barrier_in_ms))
        try:
            self._mail.get(timeout=min([MAX_IDLE_WAIT_S, *(ms / 1000 for ms in due if ms is not None)]))()
        except queue.Empty:
            return

    def _wait_for_shutdown(self) -> None:
        """Keeps a failed slot connected until the master has its report. Mail is not handled: no trigger, no commit."""
        self._dismissed.wait(self._config.shutdown_timeout_s)

    def _close(self) -> None:
        self._heartbeat_stopped.set()
        if self._memory_watch is not None:
            self._memory_watch.close()
        for task in self._order:
            self._close_task(task)
        self._exchange.close()
        self._control.close()
        self._snapshot_writer.shutdown(wait=True, cancel_futures=True)
        self._compactor.shutdown(wait=True, cancel_futures=True)

    # ------------------------------------------------------------ commands

    def _on_command(self, message: messages.ToSlot) -> None:
        if isinstance(message, messages.Shutdown | messages.Detach):
            self._dismissed.set()
        if isinstance(message, messages.Detach):
            self._detached_from = self._token
            self._change_life("detached")
        self._mail.put(partial(self._handle_command, message))

    def _on_master_lost(self, token: Token, reason: str) -> None:
        if token != self._detached_from:
            self.end(f"the master is gone: {reason}")

    def end(self, reason: str) -> None:
        """Ends the attempt for this slot. Thread-safe."""
        self._dismissed.set()
        self._mail.put(partial(self._end_attempt, reason))

    def _end_attempt(self, reason: str) -> None:
        raise _AttemptOver(reason)

    # ------------------------------------------------------------ from attempt to attempt

    def resume(self, token: Token, secret: str, master: str) -> bool:
        """Makes a kept slot continue in another attempt. Returns False if the slot is over.

        Waits until the slot is detached: the last attempt's `Detach` comes by another connection. Thread-safe.
        """
        with self._life_changed:
            self._life_changed.wait_for(lambda: self._life != "attached")
            if self._life == "over":
                return False
            self._life = "attached"
        self._mail.put(partial(self._attach, token, secret, master))
        return True

    def _attach(self, token: Token, secret: str, master: str) -> None:
        if not self._is_started or any(task.machine.ended for task in self._order):
            raise _AttemptOver("its subtasks have not begun, or one has ended")
        self._control.close()
        self._dismissed.clear()
        self._token, self._secret, self._reports_losses = token, secret, False
        for task in self._order:
            task.continue_in(token)
        try:
            self._control = self._connect(master, secret)
        except EnvironmentFailure as error:
            raise _AttemptOver(str(error)) from error

    def _retire(self, operators: Collection[OperatorId]) -> None:
        """Closes the subtasks of `operators`. The others keep their state; their inputs restart."""
        log.info("slot restarts in part", slot=self._config.index, token=self._token, operators=sorted(operators))
        for task in [task for task in self._order if task.id.operator in operators]:
            self._order.remove(task)
            del self._tasks[task.id]
            self._close_task(task)
        self._listener = _Listener(self._mail.put, self)  # drops what comes from the old exchange
        self._close_aside(self._exchange)
        self._exchange = self._open_exchange(self._config.index, self._token, self._secret, self._listener)
        self._channel_loss, self._reports_losses = None, True
        processed, ended = list[ProcessedRows](), list[str]()
        for task in self._order:
            channels = restarted_inputs(self._config.job.graph, task.id, operators)
            ended += [str(task.id) for channel in channels if task.machine.has_ended(channel)]
            processed += task.processed_rows(channels)
            if channels and not ended:
                task.restart_inputs(channels)
        self._control.send(messages.Retired(self._exchange.address, processed, ", ".join(ended)))

    def _close_aside(self, exchange: Exchange) -> None:
        """Closes an exchange on a thread of its own: it waits for hanging peers, and the subtasks run on."""
        thread = threading.Thread(target=exchange.close, name="old-exchange", daemon=True)
        try:
            start_thread(thread)
        except EnvironmentFailure:
            exchange.close()

    def _close_task(self, task: Task) -> None:
        try:
            task.close()
        except OperatorFailure as error:
            log.warning("close failed", error=str(error))

    def _continue(self) -> None:
        if self._channel_loss is not None:
            raise EnvironmentFailure(self._channel_loss.detail)
        self._reports_losses = True
        log.info("slot continues in another attempt", slot=self._config.index, token=self._token)
        self._report_finished_logic()
        self._control.send(messages.Deployed())

    def _report_finished_logic(self) -> None:
        """Repeats for a new master what subtasks that keep their state have reported to the last one."""
        for task in self._order:
            if task.machine.is_logic_done:
                self.report(task.id, LogicFinished())

    def _change_life(self, life: Literal["detached", "over"]) -> None:
        with self._life_changed:
            if self._life != "over":
                self._life = life
            self._life_changed.notify_all()

    def _handle_command(self, message: messages.ToSlot) -> None:
        match message:
            case messages.Deploy():
                self._deploy(message)
            case messages.Start():
                self._start()
            case messages.Continue():
                self._continue()
            case messages.Retire(operators):
                self._retire(operators)
            case TriggerSubtask(subtask, barrier):
                self._trigger(subtask, barrier)
            case messages.ConfirmCheckpoint(checkpoint):
                permit = permit_from_master(self._job_id, self._token, checkpoint)
                self._notify_tasks(CheckpointCompleted(permit))
            case CheckpointAborted() | ProbeSideOpened() | LiveOpened():
                self._notify_tasks(message)
            case FollowWatermark(subtask):
                self._tasks[subtask].follow(message)
            case messages.SetSourcesPaused(held):
                for task in self._order:
                    task.is_paused = held
            case messages.OperationTaken(fields):
                log.info("operation taken", slot=self._config.index, **fields)
            case messages.Detach():
                log.info("slot runs on without a master", slot=self._config.index, token=self._token)
            case messages.Shutdown():
                self._shutdown = True

    def _start(self) -> None:
        """Starts the subtasks; those that keep their state run already."""
        for task in self._order:
            if task.machine.phase == "deploying":
                task.start()
        self._is_started = True

    def _trigger(self, subtask: SubtaskId, barrier: Barrier) -> None:
        task = self._tasks.get(subtask)
        if task is None:
            log.debug("trigger for an unknown subtask ignored", subtask=str(subtask), checkpoint=barrier.checkpoint)
        else:
            task.on_master_event(Triggered(barrier))

    def _notify_tasks(self, event: SubtaskEvent) -> None:
        for task in self._order:
            task.on_master_event(event)

    # ------------------------------------------------------------ deployment

    def _deploy(self, deploy: messages.Deploy) -> None:
        self._job_id = deploy.job
        check_folders(deploy.markers, self._config.index, is_first_start=deploy.is_first_start)
        if not self._is_started:
            self._bound_memory(deploy.memory_bytes)
        self._exchange.connect({slot: address for slot, address in deploy.peers.items() if slot != self._config.index})
        deployment = Deployment(
            job=self._config.job,
            job_id=self._job_id,
            token=self._token,
            mode=deploy.mode,
            store=self._open_store(deploy.storage),
            host=self,
            inputs=deploy.inputs,
            processed=deploy.processed,
            alignment_timeout_ms=deploy.alignment_timeout_ms,
        )
        self._report_finished_logic()
        created = deployment.create_tasks(deploy.restored, self._tasks)
        tasks = self._tasks | created
        self._tasks = {subtask: tasks[subtask] for subtask in self._config.job.graph.subtasks if subtask in tasks}
        self._order = list(reversed(self._tasks.values()))
        self._passes_barriers = any(task.alignment_timeout_ms for task in self._order)
        for task in created.values():
            task.open()
        self._control.send(messages.Deployed())

    def _bound_memory(self, memory_bytes: int | None) -> None:
        """Sets the bound before state is restored, since restored state may already exceed it."""
        self._memory_bytes = memory_bytes
        if memory_bytes is None:
            return
        if self._config.has_own_process:
            limit_allocations(memory_bytes)
        self._memory_watch = MemoryWatch(memory_bytes, partial(self._on_memory_exceeded, memory_bytes))
        self._memory_watch.start()

    def _on_memory_exceeded(self, bound_bytes: int, used_bytes: int) -> None:
        """Called on the watch's thread: a step of the loop that allocates memory may not come to its end."""
        self._send_failure(bound_exceeded_error(self._config.index, used_bytes, bound_bytes))
        self._mail.put(_stop_after_failure_report)

    # ------------------------------------------------------------ channels

    def wake(self) -> None:
        self._mail.put(_wake_loop)

    def send(self, channel: ChannelId, message: Message) -> None:
        if channel.target == self._config.index:
            self._tasks[self._config.job.graph.target(channel)].deliver(channel, message)
        else:
            self._exchange.send(channel, channel.target, message)

    def _deliver(self, channel: ChannelId, message: Message) -> None:
        self._tasks[self._config.job.graph.target(channel)].deliver(channel, message)

    def return_credit(self, channel: ChannelId, nbytes: int) -> None:
        if channel.source == self._config.index:
            self._repay(channel, nbytes)
        else:
            self._exchange.grant(channel, nbytes)

    def _repay(self, channel: ChannelId, nbytes: int) -> None:
        sender = self._tasks.get(self._config.job.graph.source(channel))
        if sender is not None:  # it restarts
            sender.outputs.credits.repay(channel, nbytes)

    def is_current(self, listener: "_Listener") -> bool:
        return listener is self._listener

    def on_message(self, channel: ChannelId, message: Message) -> None:
        self._deliver(channel, message)

    def on_credit(self, channel: ChannelId, nbytes: int) -> None:
        self._repay(channel, nbytes)

    def on_lost(self, channel: ChannelId, reason: str, is_own: bool) -> None:
        """Reports a broken channel. The master ends the attempt, and decides which subtasks keep their state.

        Raises:
            EnvironmentFailure: this slot has failed, and not its peer.
        """
        way = f"from slot {channel.source} to slot {channel.target}"
        detail = f"channel {channel}, {way}, broke: {reason}"
        if is_own and self._reports_losses:
            raise EnvironmentFailure(detail)
        if self._channel_loss is None:
            peer = channel.source if channel.target == self._config.index else channel.target
            self._channel_loss = messages.ChannelBroken(peer, detail)
            log.warning("a channel broke", slot=self._config.index, detail=escape(detail)[:MAX_DETAIL_CHARACTERS])
            if self._reports_losses:
                self._control.send(self._channel_loss)

    # ------------------------------------------------------------ to the master

    def report(self, subtask: SubtaskId, report: SubtaskReport) -> None:
        if isinstance(report, SubtaskEnded):  # may be the last message of this slot
            self._send_metrics()
        self._control.send(messages.Report(subtask, report))

    def _send_metrics(self) -> None:
        metrics = [task.metrics() for task in list(self._tasks.values())]
        self._control.send(messages.Heartbeat(metrics, resident_bytes(), self._memory_bytes, cpu_ms()))

    def compact(self, work: Callable[[], None]) -> None:
        self._compactor.submit(work).add_done_callback(_log_compaction_failure)

    def run_in_background(self, subtask: SubtaskId, work: Callable[[], SnapshotAnswer]) -> None:
        future = self._snapshot_writer.submit(lambda: self.report(subtask, work()))
        future.add_done_callback(self._on_background_end)

    def _on_background_end(self, future: "Future[None]") -> None:
        if not future.cancelled() and future.exception() is not None:
            self._mail.put(future.result)  # raises on the loop

    def _send_heartbeats(self) -> None:
        while not self._heartbeat_stopped.wait(HEARTBEAT_INTERVAL_S):
            self._send_metrics()
            self._mail.put(self._growth_collector.collect_on_growth)

    def _is_connector(self, operator: str) -> bool:
        """Whether the operator is a source or a sink."""
        return operator in self._config.job.sources or operator in self._config.job.sinks

    def _send_failure(self, error: Exception) -> None:
        operator = error.operator if isinstance(error, OperatorFailure) else ""
        story = [
            redact(repr(event))
            for task in self._order
            if task.id.operator == operator
            for event in task.machine.event_log
        ]
        problem, traced = describe_error(error), traceback_text(error)
        if self._memory_bytes is not None and isinstance(_cause(error), MemoryError):
            error = allocation_failed_error(self._config.index, resident_bytes(), self._memory_bytes, problem)
            problem = str(error)
        detail = escape(problem)[:MAX_DETAIL_CHARACTERS]
        self._send_metrics()
        self._control.send(
            messages.SlotFailed(
                detail=detail,
                operator=operator,
                traceback=escape(traced),
                is_final=isinstance(_cause(error), DataRejected | JobRejected),  # a retry is no help
                events=[line[:500] for line in story[-20:]],
                damaged_file=cause.file if isinstance(cause := _cause(error), CorruptState) else "",
                fingerprint=escape(fingerprint(error)),
                code=_failure_code(error),
                is_outage=(not operator or self._is_connector(operator)) and is_outage(error),
            )
        )
        # Logged last, since the master waits for the report. No error text: only the master knows literal secrets.
        log.error("slot failed", slot=self._config.index, operator=operator, error=type(_cause(error)).__name__)


def _log_compaction_failure(future: "Future[None]") -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.error("state files were not merged", error=f"{type(error).__name__}: {error}")


def _stop_after_failure_report() -> None:
    raise _FailureReported


def _wake_loop() -> None:
    """Mail that only wakes the loop, which then checks every task."""


def _failure_code(error: BaseException) -> str:
    if isinstance(error, SlotOutOfMemory):
        return SLOT_OUT_OF_MEMORY_CODE
    if isinstance(_cause(error), RowsNotRepeated):
        return ROWS_NOT_REPEATED_CODE
    return cause.code if isinstance(cause := _cause(error), JobRejected) else ""


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ if isinstance(error, OperatorFailure) else error
