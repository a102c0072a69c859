"""Attempt of a run: deploys the slots and applies the coordinator's effects until the attempt ends.

The coordinator decides about checkpoints, the job master about restarts. A single loop reads a single mailbox, to which
threads and other processes post.
"""

import queue
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import structlog

from runtime.core.checkpoint import effects, events
from runtime.core.checkpoint.coordinator import Coordinator
from runtime.core.job.ids import CheckpointId, OperatorId, SubtaskId, Token
from runtime.core.job.lifecycle import RunEvent
from runtime.core.job.messages import CheckpointKind
from runtime.core.restore.state_assignment import SubtaskRestore
from runtime.core.snapshot.control import (
    BuildSideRead,
    CheckpointAborted,
    ProbeSideOpened,
    SourceReport,
    TriggerSubtask,
)
from runtime.core.snapshot.failure_reason import FailureReason
from runtime.core.snapshot.manifest import Manifest
from runtime.core.subtask.build_sides import BuildSides
from runtime.core.subtask.idle_sources import IdleSources
from runtime.errors import EnvironmentFailure, OperatorFailure, WeirError, is_outage
from runtime.io.control import messages
from runtime.io.control.endpoints import ControlServer, Hello
from runtime.io.logs import traceback_text
from runtime.master.config import MasterConfig
from runtime.master.delivery import DeliveryBacklog
from runtime.master.finalize import NotRecorded, Recorded, Timings, finalize_checkpoint
from runtime.master.launcher import Launcher, describe_loss
from runtime.master.live_report import LIVE_INTERVAL_MS, LiveReports
from runtime.master.metadata_thread import MetadataThread
from runtime.master.metrics_history import MetricsHistory
from runtime.master.output_commit import CheckpointOutput
from runtime.master.result import (
    AttemptFailed,
    AttemptResult,
    Canceled,
    Ended,
    Released,
    SavepointCompleted,
    Superseded,
    master_failure,
    slot_failure,
)
from runtime.master.shared_folders import remove_markers
from runtime.master.slot_monitor import SlotMonitor
from runtime.ports import Clock, SnapshotStore
from runtime.run_store import LaunchTimes, OperationRequest, RunStore

TICK_INTERVAL_S: Final = 0.25

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class AttemptStart:
    """The start of an attempt."""

    token: Token
    restored: Mapping[SubtaskId, SubtaskRestore]
    markers: Sequence[messages.Marker] = ()  #: of shared folders, for slots on other hosts; removed after deployment
    is_first: bool = False  #: first start of the run
    inputs: Mapping[OperatorId, bytes] = field(default_factory=dict)  #: listings of `ports.ListsInput`, by source
    listed_at: float  #: end of the preparation, by the monotonic clock; see `run_store.LaunchTimes`
    opened_at: float


class Attempt:
    """Create, then `run` once. `poke` and `release` are thread-safe.

    Args:
        facts: returns entries that each live report has.
        on_completed: called after each completed checkpoint, on the metadata thread.
        on_alive: called at least four times a second while the loop runs.
    """

    def __init__(
        self,
        config: MasterConfig,
        start: AttemptStart,
        records: RunStore,
        store: SnapshotStore,
        launcher: Launcher,
        clock: Clock,
        facts: Callable[[], Mapping[str, Any]],
        on_completed: Callable[[Manifest], None],
        on_alive: Callable[[], None],
    ) -> None:
        self._config, self._start, self._token = config, start, start.token
        self._records, self._store, self._launcher, self._clock = records, store, launcher, clock
        self._on_completed, self._on_alive = on_completed, on_alive
        self._graph = config.job.graph
        self._mail: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._coordinator = Coordinator(config.job_id, self._token, self._graph, config.coordinator)
        self._build_sides = BuildSides(self._graph)
        self._idle_sources = IdleSources()
        self._monitor = SlotMonitor(self._graph)
        self._metadata_thread = MetadataThread(
            lambda error: self._post(partial(self._fail, f"{type(error).__name__}: {error}")),
            call_limit_s=config.metadata_timeout_ms / 1000,
        )
        self._spark: dict[str, str] = {}
        self._output = CheckpointOutput(
            config.job.sinks, self._token, start.restored.values(), self._metadata_thread.pause
        )
        self._backlog = DeliveryBacklog(config.job.sinks)
        self._backlog_checked_at: float | None = None
        self._are_sources_paused = False
        self._epoch_ms = clock.now_ms() - int(clock.monotonic_ms())
        self._history = MetricsHistory(self._graph, clock.now_ms())
        self._live_reports = LiveReports(
            self._monitor,
            self._coordinator,
            self._history,
            records,
            lambda: {**facts(), **self._spark, **self._progress()},
            clock.now_ms,  # `_now` stands still while the host is suspended
        )
        self._result: AttemptResult | None = None
        self._addresses: dict[int, str] = {}
        self._deployed_slots: set[int] = set()
        self._connected_at = 0.0
        self._running_since: float | None = None
        self._has_completed_checkpoint = False
        self._wake_at: list[int] = []
        self.cancel_operations: list[str] = []  #: operations that requested a cancel
        self._ending_operations: set[str] = set()  #: operations that requested a stop or drain
        self._taken_operations: dict[str, OperationRequest] = {}
        self._is_taking_operations = False
        self._poked_meanwhile = False

    def _now(self) -> int:
        """Milliseconds since the epoch, by a clock that does not jump within the attempt."""
        return self._epoch_ms + int(self._clock.monotonic_ms())

    def _progress(self) -> Mapping[str, Any]:
        deploying_ms = None if self._running_since is not None else round(self._clock.monotonic_ms() - self._started_at)
        undeployed = sorted(set(range(self._graph.parallelism)) - self._deployed_slots)
        return {
            "sources_paused": self._are_sources_paused, "deploying_ms": deploying_ms, "undeployed_slots": undeployed
        }  # fmt: skip

    @property
    def newest_report(self) -> Mapping[str, Any]:
        return self._live_reports.newest

    # ------------------------------------------------------------ from other threads

    def poke(self) -> None:
        """Checks for new operations of the run."""
        self._post(self._take_operations)

    def release(self) -> None:
        """Ends the attempt so that another worker can claim the run."""
        self._post(partial(self._end, Released()))

    def _post(self, mail: Callable[[], None]) -> None:
        self._mail.put(mail)

    # ------------------------------------------------------------ the loop

    def run(self) -> AttemptResult:
        secret = secrets.token_hex(16)
        control = ControlServer(
            self._token,
            secret,
            messages.ToMaster,
            on_hello=lambda slot, hello: self._post(partial(self._on_hello, slot, hello)),
            on_message=lambda slot, message: self._post(partial(self._on_message, slot, message)),
            on_lost=lambda slot, reason: self._post(partial(self._on_lost, slot, reason)),
            host=self._config.host,
        )
        self._control = control
        self._started_at = self._clock.monotonic_ms()
        try:
            self._launcher.launch(self._config.job, self._token, secret, control.address, self._on_slot_exit)
            while self._result is None:
                self._turn()
        finally:
            result = self._shut_down(control)
        return result

    def _turn(self) -> None:
        self._on_alive()
        try:
            self._mail.get(timeout=self._mail_timeout_s())()
            while self._result is None and not self._mail.empty():
                self._mail.get()()
        except queue.Empty:
            pass
        self._check_timers()

    def _mail_timeout_s(self) -> float:
        """Seconds until the coordinator's next wake-up, at most a tick."""
        return min([TICK_INTERVAL_S, *(max(0, at - self._now()) / 1000 for at in self._wake_at)])

    def _check_timers(self) -> None:
        now, at = self._clock.monotonic_ms(), self._now()
        self._check_backlog(now)
        if self._wake_at and at >= min(self._wake_at):
            self._wake_at = [wanted for wanted in self._wake_at if wanted > at]
            self._on_tick(at)
        silent = self._monitor.silent_slot(now, self._config.heartbeat_timeout_ms)
        if silent is not None:
            self._fail_by(silent, f"has been silent for {self._config.heartbeat_timeout_ms} ms")
        missing = sorted(set(range(self._graph.parallelism)) - self._addresses.keys())
        timeout_ms = self._config.slots.start_ms
        if missing and now - self._started_at > timeout_ms:
            self._fail(f"slots {missing} did not connect within {timeout_ms} ms")
        if self._metadata_thread.is_hung:
            self._end(AttemptFailed(self._hung_call(), is_outage=True, is_intact=True))
        self._live_reports.write_if_due(now)

    def _hung_call(self) -> str:
        storing = [str(checkpoint) for checkpoint, each in self._coordinator.pending.items() if each.storing]
        work = f"checkpoint {storing[0]} is not stored and committed" if storing else "a write has not ended"
        return f"{work} after {self._config.metadata_timeout_ms} ms: storage, database or a sink does not answer"

    def _on_tick(self, at: int) -> None:
        """Handles a tick. An error at a trigger fails that checkpoint only, and the trigger timer goes on."""
        try:
            self._handle(events.Ticked(at))
        except Exception as error:
            log.error("a checkpoint could not be triggered", traceback=traceback_text(error))
            self._live_reports.not_triggered += 1
            self._wake_at.append(at + LIVE_INTERVAL_MS)
            self._handle(events.TriggerFailed(at, f"{type(error).__name__}: {error}"))

    def _shut_down(self, control: ControlServer) -> AttemptResult:
        """Suspends the coordinator, shuts the slots down and waits for pending metadata writes."""
        result = self._result or AttemptFailed("the master failed")
        self._handle(events.CoordinatorSuspended(self._now()))
        for slot in range(self._graph.parallelism):
            control.send(slot, messages.Shutdown())
        control.close()
        is_intact = isinstance(result, AttemptFailed) and result.is_intact
        self._launcher.rest() if is_intact else self._launcher.stop()
        self._live_reports.write_last(self._clock.monotonic_ms(), is_end=isinstance(result, Ended))
        self._metadata_thread.close(timeout_s=10.0 if isinstance(result, Released) else 60.0)
        self._live_reports.close(timeout_s=60.0 if isinstance(result, Ended) else 2.0)
        self._remove_markers()
        while not self._mail.empty():  # a manifest in flight may have been recorded
            self._mail.get()()
        savepoint = self._coordinator.savepoint
        if isinstance(result, Ended):
            return Ended(savepoint)
        if savepoint is not None and not isinstance(result, Superseded):
            return SavepointCompleted(savepoint)
        if isinstance(result, AttemptFailed):
            ran_ms = 0 if self._running_since is None else int(self._clock.monotonic_ms() - self._running_since)
            return replace(result, has_progressed=self._has_completed_checkpoint, ran_ms=ran_ms)
        return result

    def _end(self, result: AttemptResult) -> None:
        if self._result is None and isinstance(result, AttemptFailed):
            log.error("attempt fails", token=self._token, detail=result.detail)
        self._result = self._result or result

    def _fail(self, detail: str) -> None:
        self._end(AttemptFailed(detail))

    def _fail_by(self, slot: int, detail: str) -> None:
        log_file = self._monitor.log_of(slot)
        self._end(AttemptFailed(f"slot {slot} {detail}", slot=slot, slot_log=log_file))

    def _on_superseded(self) -> None:
        self._end(Superseded())

    # ------------------------------------------------------------ slots

    def _on_slot_exit(self, error: str | None) -> None:
        self._post(partial(self._fail, error or "the slots ended before the job did"))

    def _on_hello(self, slot: int, hello: Hello) -> None:
        self._monitor.on_hello(slot, hello, self._clock.monotonic_ms())
        self._addresses[slot] = hello.address
        config = self._config
        if len(self._addresses) == self._graph.parallelism:
            log.info("every slot is there", token=self._token)
            self._connected_at = self._clock.monotonic_ms()
            for each in self._addresses:
                restored = [r for subtask, r in self._start.restored.items() if subtask.index == each]
                deploy = messages.Deploy(
                    config.job_id,
                    config.storage,
                    self._addresses,
                    restored,
                    config.coordinator.mode,
                    list(self._start.markers),
                    self._start.is_first,
                    config.slot_memory_bytes,
                    dict(self._start.inputs),
                )
                self._control.send(each, deploy)

    def _on_message(self, slot: int, message: messages.ToMaster) -> None:
        now, at = self._clock.monotonic_ms(), self._now()
        self._monitor.on_message(slot, now, message if isinstance(message, messages.Heartbeat) else None)
        match message:
            case messages.SlotDeployed():
                self._on_slot_deployed(slot, at)
            case messages.Report(subtask, report):
                if isinstance(report, BuildSideRead):
                    self._open_probe_side(self._build_sides.complete(subtask))
                elif isinstance(report, SourceReport):
                    for follow in self._idle_sources.on_report(subtask, report):
                        self._control.send(follow.subtask.index, follow)
                else:
                    self._handle(events.SubtaskReported(at, subtask, report))
            case messages.SlotFailed():
                log.error("slot failed", slot=slot, detail=message.detail, traceback=message.traceback)
                self._end(slot_failure(slot, message))

    def _open_probe_side(self, join: OperatorId | None) -> None:
        if join is not None:
            for slot in self._deployed_slots:
                self._control.send(slot, ProbeSideOpened(join))

    def _on_slot_deployed(self, slot: int, at: int) -> None:
        self._deployed_slots.add(slot)
        if len(self._deployed_slots) < self._graph.parallelism or self._result is not None:
            return
        self._running_since = self._clock.monotonic_ms()
        self._spark = {"spark_ui": self._launcher.ui_address, "spark_application": self._launcher.application}
        log.info("every slot is deployed", token=self._token)
        self._metadata_thread.submit(self._remove_markers, once=True)
        for each in self._deployed_slots:
            self._control.send(each, messages.StartSubtasks())
        resumed = any(restored.snapshots for restored in self._start.restored.values())
        begins_now = any(not self._config.job.sources[uid].bounded for uid in self._start.inputs)
        self._handle(events.JobStarted(at, resumed=resumed or begins_now))
        self._change_state(RunEvent.DEPLOYED)
        self._metadata_thread.submit(partial(self._records.record_launch, self._launch_times(self._running_since)))
        self._take_operations()

    def _launch_times(self, deployed_at: float) -> LaunchTimes:
        listed, opened, connected, deployed = (
            self._epoch_ms + int(at)
            for at in (self._start.listed_at, self._start.opened_at, self._connected_at, deployed_at)
        )
        return LaunchTimes(listed=listed, opened=opened, connected=connected, deployed=deployed)

    def _remove_markers(self) -> None:
        remove_markers(self._start.markers, self._config.job_id, self._token)

    def _on_lost(self, slot: int, reason: str) -> None:
        self._fail_by(slot, f"was lost: {describe_loss(reason, self._monitor.memory_of(slot))}")

    def _check_backlog(self, now: float) -> None:
        """Checks the backlog once a second, on the metadata thread, since the folder may hang."""
        if not self._backlog.has_sinks or self._running_since is None or self._metadata_thread.is_behind:
            return
        if self._backlog_checked_at is None or now - self._backlog_checked_at >= LIVE_INTERVAL_MS:
            self._backlog_checked_at = now
            self._metadata_thread.submit(
                self._backlog.is_too_large, lambda large: self._post(partial(self._pause_sources, large))
            )

    def _pause_sources(self, held: bool) -> None:
        """Pauses or resumes the sources. Barriers pass: checkpoints without rows do not add to the backlog."""
        if held != self._are_sources_paused:
            self._are_sources_paused = held
            log.info("sources paused: too many epochs await delivery" if held else "sources resumed")
            for slot in self._deployed_slots:
                self._control.send(slot, messages.PauseSources(held))

    # ------------------------------------------------------------ the coordinator

    def _handle(self, event: events.CoordinatorEvent) -> None:
        for effect in self._coordinator.handle(event):
            self._apply(effect)

    def _apply(self, effect: effects.CoordinatorEffect) -> None:
        match effect:
            case effects.IssueId():
                self._metadata_thread.submit(self._issue_checkpoint_id, self._on_checkpoint_id, once=True)
            case effects.WakeAt(at):
                self._wake_at.append(at)
            case TriggerSubtask():
                self._control.send(effect.subtask.index, effect)
            case effects.StoreManifest(manifest, timings):
                self._metadata_thread.submit(
                    partial(self._finalize, manifest, timings),
                    partial(self._on_finalized, manifest, timings, self._now()),
                )
            case effects.NotifyCompleted(permit, subtasks):
                for slot in {subtask.index for subtask in subtasks}:
                    self._control.send(slot, messages.ConfirmCheckpoint(permit.checkpoint))
            case effects.NotifyAborted(checkpoint, subtasks):
                for slot in {subtask.index for subtask in subtasks}:
                    self._control.send(slot, CheckpointAborted(checkpoint))
            case effects.ReportCheckpoint():
                if effect.reason not in (None, FailureReason.SUSPENDED):
                    self._history.on_failed_checkpoint()
                self._metadata_thread.submit(partial(self._records.report_checkpoint, effect))
            case effects.CompleteOperation(operation, checkpoint, reason, detail):
                self._complete_operation(operation, checkpoint, str(reason or ""), detail)
            case effects.LateAnswer():
                log.info("late answer to a checkpoint ignored", subtask=str(effect.subtask), answer=repr(effect))
            case effects.ResumeJob():
                self._change_state(RunEvent.SHUTDOWN_ABANDONED)
            case effects.FailAttempt(detail):
                self._end(AttemptFailed(detail, is_intact=True))
            case effects.EndJob():
                self._end(Ended())

    def _issue_checkpoint_id(self) -> int | None:
        """Runs on the metadata thread. Any error fails this checkpoint only, as an unavailable database does."""
        try:
            return self._records.next_checkpoint_id()
        except EnvironmentFailure:
            raise
        except Exception as error:
            log.error("no checkpoint id", traceback=traceback_text(error))
            raise EnvironmentFailure(f"{type(error).__name__}: {error}") from error

    def _on_checkpoint_id(self, answer: int | None | EnvironmentFailure) -> None:
        at = self._now()
        if answer is None:
            self._post(self._on_superseded)
        elif isinstance(answer, EnvironmentFailure):
            self._live_reports.not_triggered += 1
            self._post(partial(self._handle, events.IdUnavailable(at, str(answer))))
        else:
            self._post(partial(self._handle, events.IdIssued(at, CheckpointId(answer))))

    def _finalize(self, manifest: Manifest, timings: Timings) -> Recorded | NotRecorded | Superseded:
        """Finalizes a checkpoint unless its output has a problem. Runs on the metadata thread."""
        try:
            problem = self._output.problem(manifest)
        except OperatorFailure as error:  # the thread has later work, such as the answers to operations
            problem = str(error)
        if problem is not None:
            return NotRecorded(problem)
        return finalize_checkpoint(self._store, self._records, manifest, timings, self._now)

    def _on_finalized(
        self, manifest: Manifest, timings: Timings, acknowledged_at: int, result: Recorded | NotRecorded | Superseded
    ) -> None:
        """Runs on the metadata thread: output is committed before slots are notified.

        A failed commit ends the attempt. A restore of this checkpoint, or of a later checkpoint, commits.
        """
        checkpoint = CheckpointId(manifest.checkpoint)
        match result:
            case Recorded():
                try:
                    self._output.on_recorded(manifest)
                except (WeirError, OSError) as error:
                    failed = master_failure(error, f"checkpoint {checkpoint} cannot be committed: ")
                    failed = replace(failed, damaged_file="", is_outage=is_outage(error), is_intact=True)
                    self._post(partial(self._end, failed))
                self._post(partial(self._on_recorded, manifest, timings, acknowledged_at))
                self._metadata_thread.submit(partial(self._on_completed, manifest))
            case NotRecorded(detail):
                self._post(partial(self._handle, events.ManifestFailed(self._now(), checkpoint, detail)))
            case Superseded():
                self._post(self._on_superseded)

    def _on_recorded(self, manifest: Manifest, timings: Timings, acknowledged_at: int) -> None:
        self._has_completed_checkpoint = True
        now = self._now()
        self._history.on_checkpoint(manifest, timings, now - manifest.triggered_at, now - acknowledged_at)
        self._handle(events.ManifestRecorded(now, CheckpointId(manifest.checkpoint)))

    # ------------------------------------------------------------ operations

    def _take_operations(self) -> None:
        self._poked_meanwhile = self._is_taking_operations  # a query in flight may miss later operations
        if not self._is_taking_operations and self._result is None:
            self._is_taking_operations = True
            work = partial(self._records.take_operations, only_cancel=self._running_since is None)
            self._metadata_thread.submit(work, lambda taken: self._post(partial(self._on_operations, taken)), once=True)

    def _on_operations(self, taken: list[OperationRequest] | None | EnvironmentFailure) -> None:
        self._is_taking_operations = False
        if taken is None:
            self._on_superseded()
        elif not isinstance(taken, EnvironmentFailure):
            for request in taken:
                if request.id not in self._taken_operations:
                    self._taken_operations[request.id] = request
                    self._start_operation(request)
        if self._poked_meanwhile:
            self._take_operations()

    def _start_operation(self, request: OperationRequest) -> None:
        log.info("operation taken", **request.log_fields)
        for slot in self._deployed_slots:
            self._control.send(slot, messages.OperationTaken(request.log_fields))
        if request.kind == "cancel":
            self.cancel_operations.append(request.id)
            self._change_state(RunEvent.CANCEL_REQUESTED)
            self._end(Canceled())
            return
        event = {"stop": RunEvent.STOP_REQUESTED, "drain": RunEvent.DRAIN_REQUESTED}.get(request.kind)
        if event is not None:
            self._ending_operations.add(request.id)
            self._change_state(event)
        self._handle(events.CheckpointRequested(self._now(), CheckpointKind(request.kind), request.id))

    def _complete_operation(self, operation: str, checkpoint: CheckpointId | None, reason: str, detail: str) -> None:
        taken = self._taken_operations[operation].log_fields
        if checkpoint is not None:
            log.info("savepoint of the operation is complete", checkpoint=checkpoint, **taken)
        if checkpoint is not None and operation in self._ending_operations:
            return  # the job master completes it when the run has ended
        if self._is_requeued(operation, reason):
            log.info("operation left to the next attempt", **taken)
            return
        if checkpoint is None:
            log.warning("operation failed", reason=reason, detail=detail, **taken)
        result = {"checkpoint": checkpoint} if checkpoint is not None else None
        error = None if result else {"code": reason, "message": detail}
        self._metadata_thread.submit(partial(self._records.complete_operation, operation, result, error))

    def _is_requeued(self, operation: str, reason: str) -> bool:
        """Whether an interrupted operation stays queued, so that the next attempt takes it.

        Every operation does when the worker shuts down, a stop or drain also after the loss of a slot and during an
        outage. If code of the job raised, the stop or drain may be the cause, so the operation fails.
        """
        if reason != FailureReason.SUSPENDED:
            return False
        match self._result:
            case Released():
                return True
            case AttemptFailed(is_final=False) as failed:
                return operation in self._ending_operations and (not failed.operator or failed.is_outage)
        return False

    # ------------------------------------------------------------ reports

    def _change_state(self, event: RunEvent) -> None:
        def on_state(state: object) -> None:
            if state is None:
                self._post(self._on_superseded)

        self._metadata_thread.submit(partial(self._records.change_state, event), on_state)
