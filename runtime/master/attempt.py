"""Attempt of a run: deploys the slots and applies the coordinator's effects until the attempt ends.

The coordinator decides about checkpoints, the job master about restarts. A single loop reads a single mailbox, to which
threads and other processes post.
"""

import queue
import secrets
from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, cast

import structlog

from runtime.core.checkpoint.coordinator import Coordinator
from runtime.core.effects import (
    CoordinatorEffect,
    EndJob,
    FailAttempt,
    IssueId,
    LateAnswer,
    NotifyAborted,
    NotifyCompleted,
    ReportCheckpoint,
    ResumeJob,
    SettleOperation,
    StoreManifest,
    TriggerSubtask,
    WakeAt,
)
from runtime.core.events import (
    Acknowledged,
    CheckpointDeclined,
    CheckpointRequested,
    CoordinatorEvent,
    CoordinatorSuspended,
    IdIssued,
    IdUnavailable,
    JobStarted,
    LogicFinished,
    ManifestFailed,
    ManifestRecorded,
    SubtaskEnded,
    Ticked,
    TriggerFailed,
)
from runtime.core.job.ids import CheckpointId, OperatorId
from runtime.core.job.lifecycle import RunEvent
from runtime.core.job.messages import CheckpointKind
from runtime.core.snapshot.manifest import FailureReason, Manifest
from runtime.core.subtask.build_sides import BuildSides
from runtime.errors import EnvironmentFailure, JobRejected, WeirError
from runtime.io.control.endpoints import ControlServer, Hello
from runtime.io.control.messages import (
    Aborted,
    Ack,
    BuildSideRead,
    Completed,
    Declined,
    Deploy,
    Deployed,
    Ended,
    Failed,
    Finished,
    Go,
    Heartbeat,
    ProbeOpened,
    Shutdown,
    SourcesHeld,
    ToMaster,
    Trigger,
)
from runtime.io.logs import trace
from runtime.master.epoch_backlog import Backlog
from runtime.master.epoch_commit import EpochCommits
from runtime.master.finalize import Timings, complete
from runtime.master.launcher import AttemptConfig, Launcher, Outcome, OutcomeKind, failed_by
from runtime.master.live_report import LIVE_MS, Reports
from runtime.master.metadata_thread import Scribe
from runtime.master.outages import is_outage
from runtime.master.prepared_output import PreparedOutput
from runtime.master.shared_folders import remove_markers
from runtime.master.slot_monitor import Monitor
from runtime.ports import Clock, SnapshotStore
from runtime.run_store import OperationRequest, RunRecords

TICK_S: Final = 0.25

log = structlog.get_logger()


@dataclass
class Attempt:
    """Create, then `run` once. `poke` and `release` are thread-safe."""

    config: AttemptConfig
    records: RunRecords
    store: SnapshotStore
    launcher: Launcher
    clock: Clock
    completed: Callable[[Manifest], None]  #: called after each completed checkpoint, on the metadata thread
    alive: Callable[[], None]  #: called at least four times a second while the loop runs
    _mail: "queue.SimpleQueue[Callable[[], None]]" = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        config = self.config
        self._graph = config.job.graph
        self._coordinator = Coordinator(config.job_id, config.token, self._graph, config.settings)
        self._build_sides = BuildSides(self._graph)
        self._monitor = Monitor(self._graph)
        self._scribe = Scribe(lambda error: self._post(partial(self._fail, f"{type(error).__name__}: {error}")))
        own: dict[str, Any] = {"restarts": config.restarts, "parallelism": self._graph.parallelism}
        self._facts = own
        facts = ChainMap(own, cast("dict[str, Any]", config.facts))
        self._reports = Reports(self._monitor, self._coordinator, self._scribe, self.records, facts)
        self._output = PreparedOutput(config.job.sinks, config.restored.values())
        self._epochs = EpochCommits(config.job.sinks, config.token)
        self._uncommitted: int | None = None  #: recorded checkpoint whose output the master could not commit
        self._backlog = Backlog(config.job.sinks)
        self._backlog_asked_at: float | None = None
        self._held = False
        self._epoch_ms = self.clock.now_ms() - int(self.clock.monotonic_ms())
        self._outcome: Outcome | None = None
        self._addresses: dict[int, str] = {}
        self._deployed: set[int] = set()
        self._running_since: float | None = None
        self._progressed = False
        self._wake_at: list[int] = []
        self.cancelled_by: list[str] = []  #: operations that requested a cancel
        self._ending: set[str] = set()  #: operations that requested a stop or drain
        self._heard_of: set[str] = set()
        self._taking = False
        self._asked_meanwhile = False

    def _now(self) -> int:
        """Milliseconds since the epoch, by a clock that does not jump within the attempt."""
        return self._epoch_ms + int(self.clock.monotonic_ms())

    # ------------------------------------------------------------ from other threads

    def poke(self) -> None:
        """Checks for new operations of the run."""
        self._post(self._take_operations)

    def release(self) -> None:
        """Ends the attempt so that another worker can claim the run."""
        self._post(partial(self._end, Outcome(OutcomeKind.RELEASED)))

    def _post(self, mail: Callable[[], None]) -> None:
        self._mail.put(mail)

    # ------------------------------------------------------------ the loop

    def run(self) -> Outcome:
        secret = secrets.token_hex(16)
        control = ControlServer(
            self.config.token,
            secret,
            ToMaster,
            on_hello=lambda slot, hello: self._post(partial(self._hello, slot, hello)),
            on_message=lambda slot, message: self._post(partial(self._heard, slot, message)),
            on_lost=lambda slot, reason: self._post(partial(self._lost, slot, reason)),
            host=self.config.host,
        )
        self._control = control
        self._started_at = self.clock.monotonic_ms()
        try:
            self.launcher.launch(self.config.job, self.config.token, secret, control.address, self._launch_ended)
            while self._outcome is None:
                self._turn()
        finally:
            outcome = self._wind_down(control)
        return outcome

    def _turn(self) -> None:
        self.alive()
        try:
            self._mail.get(timeout=self._patience_s())()
            while self._outcome is None and not self._mail.empty():
                self._mail.get()()
        except queue.Empty:
            pass
        self._look_around()

    def _patience_s(self) -> float:
        """Seconds until the coordinator's next wake-up, at most a tick."""
        return min([TICK_S, *(max(0, at - self._now()) / 1000 for at in self._wake_at)])

    def _look_around(self) -> None:
        now, at = self.clock.monotonic_ms(), self._now()
        self._look_at_backlog(now)
        if self._wake_at and at >= min(self._wake_at):
            self._wake_at = [wanted for wanted in self._wake_at if wanted > at]
            self._tick(at)
        silent = self._monitor.silent(now, self.config.heartbeat_timeout_ms)
        if silent is not None:
            self._fail(f"slot {silent} has been silent for {self.config.heartbeat_timeout_ms} ms")
        missing = sorted(set(range(self._graph.parallelism)) - self._addresses.keys())
        timeout_ms = self.config.slot_start_timeout_ms
        if missing and now - self._started_at > timeout_ms:
            self._fail(f"slots {missing} did not connect within {timeout_ms} ms")
        self._reports.write_if_due(now)

    def _tick(self, at: int) -> None:
        """Handles a tick. An error at a trigger fails that checkpoint only, and the trigger timer goes on."""
        try:
            self._decide(Ticked(at))
        except Exception as error:
            log.error("a checkpoint could not be triggered", traceback=trace(error))
            self._reports.not_triggered += 1
            self._wake_at.append(at + LIVE_MS)
            self._decide(TriggerFailed(at, f"{type(error).__name__}: {error}"))

    def _wind_down(self, control: ControlServer) -> Outcome:
        """Suspends the coordinator, shuts the slots down and waits for pending metadata writes."""
        outcome = self._outcome or Outcome(OutcomeKind.FAILED, "the master failed")
        self._decide(CoordinatorSuspended(self._now()))
        for slot in range(self._graph.parallelism):
            control.send(slot, Shutdown())
        control.close()
        self.launcher.rest() if outcome.intact else self.launcher.stop()
        self._reports.write_last(self.clock.monotonic_ms(), outcome)
        self._scribe.close(timeout_s=10.0 if outcome.kind is OutcomeKind.RELEASED else 60.0)
        self._remove_markers()
        while not self._mail.empty():  # a manifest in flight may have been recorded
            self._mail.get()()
        savepoint = self._coordinator.savepoint
        ran_ms = 0 if self._running_since is None else int(self.clock.monotonic_ms() - self._running_since)
        return replace(outcome, savepoint=savepoint, progressed=self._progressed, ran_ms=ran_ms)

    def _end(self, outcome: Outcome) -> None:
        if self._outcome is None and outcome.kind is OutcomeKind.FAILED:
            log.warning("attempt fails", token=self.config.token, detail=outcome.detail)
        self._outcome = self._outcome or outcome

    def _fail(self, detail: str) -> None:
        self._end(Outcome(OutcomeKind.FAILED, detail))

    def _superseded(self) -> None:
        self._end(Outcome(OutcomeKind.SUPERSEDED))

    # ------------------------------------------------------------ slots

    def _launch_ended(self, error: str | None) -> None:
        self._post(partial(self._fail, error or "the slots ended before the job did"))

    def _hello(self, slot: int, hello: Hello) -> None:
        self._monitor.hello(slot, hello, self.clock.monotonic_ms())
        self._addresses[slot] = hello.address
        config = self.config
        if len(self._addresses) == self._graph.parallelism:
            log.info("every slot is there", token=config.token)
            for each in self._addresses:
                restored = [r for subtask, r in config.restored.items() if subtask.index == each]
                deploy = Deploy(
                    config.job_id,
                    config.storage,
                    self._addresses,
                    restored,
                    config.settings.mode,
                    list(config.markers),
                    config.first,
                    config.slot_memory_bytes,
                )
                self._control.send(each, deploy)

    def _heard(self, slot: int, message: ToMaster) -> None:
        now, at = self.clock.monotonic_ms(), self._now()
        self._monitor.heard(slot, now, message if isinstance(message, Heartbeat) else None)
        match message:
            case Deployed():
                self._slot_deployed(slot, at)
            case Ack(subtask, checkpoint, snapshot, timings):
                self._decide(Acknowledged(at, subtask, CheckpointId(checkpoint), snapshot, timings))
            case Declined(subtask, checkpoint, reason, detail):
                self._decide(CheckpointDeclined(at, subtask, CheckpointId(checkpoint), reason, detail))
            case BuildSideRead(subtask):
                self._open_probe_side(self._build_sides.complete(subtask))
            case Finished(subtask):
                self._decide(LogicFinished(at, subtask))
            case Ended(subtask):
                self._decide(SubtaskEnded(at, subtask))
            case Failed():
                log.error("slot failed", slot=slot, detail=message.detail, traceback=message.traceback)
                self._end(failed_by(message))

    def _open_probe_side(self, join: OperatorId | None) -> None:
        if join is not None:
            for slot in self._deployed:
                self._control.send(slot, ProbeOpened(join))

    def _slot_deployed(self, slot: int, at: int) -> None:
        self._deployed.add(slot)
        if len(self._deployed) < self._graph.parallelism or self._outcome is not None:
            return
        self._running_since = self.clock.monotonic_ms()
        self._facts["spark_ui"] = self.launcher.ui_address
        log.info("every slot is deployed", token=self.config.token)
        self._scribe.submit(self._remove_markers, once=True)
        for each in self._deployed:
            self._control.send(each, Go())
        self._decide(JobStarted(at, resumed=any(restored.snapshots for restored in self.config.restored.values())))
        self._change_state(RunEvent.DEPLOYED)
        self._take_operations()

    def _remove_markers(self) -> None:
        remove_markers(self.config.markers, self.config.job_id, self.config.token)

    def _lost(self, slot: int, reason: str) -> None:
        self._fail(f"slot {slot} is gone: {reason}")

    def _look_at_backlog(self, now: float) -> None:
        """Checks the backlog once a second, on the metadata thread, since the folder may hang."""
        if not self._backlog.is_possible or self._running_since is None or self._scribe.behind:
            return
        if self._backlog_asked_at is None or now - self._backlog_asked_at >= LIVE_MS:
            self._backlog_asked_at = now
            self._scribe.submit(self._backlog.too_large, lambda large: self._post(partial(self._hold, large)))

    def _hold(self, held: bool) -> None:
        """Pauses or resumes the sources. Barriers pass: checkpoints without rows do not add to the backlog."""
        if held != self._held:
            self._held = held
            log.info("sources paused: too many epochs await delivery" if held else "sources resumed")
            for slot in self._deployed:
                self._control.send(slot, SourcesHeld(held))

    # ------------------------------------------------------------ the coordinator

    def _decide(self, event: CoordinatorEvent) -> None:
        for effect in self._coordinator.handle(event):
            self._perform(effect)

    def _perform(self, effect: CoordinatorEffect) -> None:
        match effect:
            case IssueId():
                self._scribe.submit(self._next_id, self._id_answered, once=True)
            case WakeAt(at):
                self._wake_at.append(at)
            case TriggerSubtask(subtask, barrier):
                self._control.send(subtask.index, Trigger(subtask, barrier))
            case StoreManifest(manifest, timings):
                self._scribe.submit(partial(self._complete, manifest, timings), partial(self._stored, manifest))
            case NotifyCompleted(permit, subtasks):
                for slot in {subtask.index for subtask in subtasks}:
                    self._control.send(slot, Completed(permit.checkpoint))
            case NotifyAborted(checkpoint, subtasks):
                for slot in {subtask.index for subtask in subtasks}:
                    self._control.send(slot, Aborted(checkpoint))
            case ReportCheckpoint():
                self._scribe.submit(partial(self.records.report_checkpoint, effect))
            case SettleOperation(operation, checkpoint, reason, detail):
                self._settle(operation, checkpoint, str(reason or ""), detail)
            case LateAnswer():
                log.info("late answer to a checkpoint ignored", subtask=str(effect.subtask), answer=repr(effect))
            case ResumeJob():
                self._change_state(RunEvent.SHUTDOWN_ABANDONED)
            case FailAttempt(detail):
                self._end(Outcome(OutcomeKind.FAILED, detail, intact=True))
            case EndJob():
                self._end(Outcome(OutcomeKind.ENDED))

    def _next_id(self) -> int | None:
        """Runs on the metadata thread. Any error fails this checkpoint only, as an unavailable database does."""
        try:
            return self.records.next_checkpoint_id()
        except EnvironmentFailure:
            raise
        except Exception as error:
            log.error("no checkpoint id", traceback=trace(error))
            raise EnvironmentFailure(f"{type(error).__name__}: {error}") from error

    def _id_answered(self, answer: int | None | EnvironmentFailure) -> None:
        at = self._now()
        if answer is None:
            self._post(self._superseded)
        elif isinstance(answer, EnvironmentFailure):
            self._reports.not_triggered += 1
            self._post(partial(self._decide, IdUnavailable(at, str(answer))))
        else:
            self._post(partial(self._decide, IdIssued(at, CheckpointId(answer))))

    def _complete(self, manifest: Manifest, timings: Timings) -> bool | str:
        """Runs on the metadata thread."""
        if self._uncommitted is not None:
            return f"the output of the preceding checkpoint {self._uncommitted} could not be committed"
        lost = self._output.missing(manifest)
        if lost:
            return f"prepared output cannot be seen from the job master: {lost[0]} is missing"
        return complete(self.store, self.records, manifest, timings, self._now())

    def _commit_epoch(self, manifest: Manifest) -> None:
        """Commits on the metadata thread before slots are notified. If it fails, the next checkpoint names the output.

        A failure ends the attempt. A restore of this checkpoint, or of a later checkpoint, commits.
        """
        try:
            self._epochs.on_recorded(manifest)
        except (WeirError, OSError) as error:
            detail = f"checkpoint {manifest.checkpoint} cannot be committed: {error}"
            code = error.code if isinstance(error, JobRejected) else ""
            outage = is_outage(error)
            failed = Outcome(OutcomeKind.FAILED, detail, final=bool(code), outage=outage, code=code, intact=True)
            self._post(partial(self._end, failed))
            self._uncommitted = manifest.checkpoint

    def _stored(self, manifest: Manifest, recorded: bool | str) -> None:
        checkpoint = CheckpointId(manifest.checkpoint)
        if isinstance(recorded, str):
            self._post(partial(self._decide, ManifestFailed(self._now(), checkpoint, recorded)))
        elif recorded:
            self._output.on_recorded(manifest)
            if manifest.kind is not CheckpointKind.SAVEPOINT:  # a plain savepoint commits no output
                self._commit_epoch(manifest)
            self._post(partial(self._recorded, checkpoint))
            self._scribe.submit(partial(self.completed, manifest))
        else:
            self._post(self._superseded)

    def _recorded(self, checkpoint: CheckpointId) -> None:
        self._progressed = True
        self._decide(ManifestRecorded(self._now(), checkpoint))

    # ------------------------------------------------------------ operations

    def _take_operations(self) -> None:
        self._asked_meanwhile = self._taking  # a query in flight may miss later operations
        if not self._taking and self._outcome is None:
            self._taking = True
            work = partial(self.records.take_operations, only_cancel=self._running_since is None)
            self._scribe.submit(work, lambda taken: self._post(partial(self._taken, taken)), once=True)

    def _taken(self, taken: list[OperationRequest] | None | EnvironmentFailure) -> None:
        self._taking = False
        if taken is None:
            self._superseded()
        elif not isinstance(taken, EnvironmentFailure):
            for request in taken:
                if request.id not in self._heard_of:
                    self._heard_of.add(request.id)
                    self._start_operation(request)
        if self._asked_meanwhile:
            self._take_operations()

    def _start_operation(self, request: OperationRequest) -> None:
        if request.kind == "cancel":
            self.cancelled_by.append(request.id)
            self._change_state(RunEvent.CANCEL_REQUESTED)
            self._end(Outcome(OutcomeKind.CANCELED))
            return
        event = {"stop": RunEvent.STOP_REQUESTED, "drain": RunEvent.DRAIN_REQUESTED}.get(request.kind)
        if event is not None:
            self._ending.add(request.id)
            self._change_state(event)
        self._decide(CheckpointRequested(self._now(), CheckpointKind(request.kind), request.id))

    def _settle(self, operation: str, checkpoint: CheckpointId | None, reason: str, detail: str) -> None:
        if checkpoint is not None and operation in self._ending:
            return  # the job master settles it when the run has ended
        if self._is_asked_again(operation, reason):
            log.info("operation left to the next attempt", operation=operation)
            return
        result = {"checkpoint": checkpoint} if checkpoint is not None else None
        error = None if result else {"code": reason, "message": detail}
        self._scribe.submit(partial(self.records.settle_operation, operation, result, error))

    def _is_asked_again(self, operation: str, reason: str) -> bool:
        """Whether an interrupted operation stays queued, so that the next attempt takes it.

        Each does when the worker shuts down; a stop or drain also after the loss of a slot and during an outage. If
        code of the job raised, the stop or drain may be the cause, so it fails.
        """
        end = self._outcome
        if end is None or end.final or reason != FailureReason.SUSPENDED:
            return False
        if end.kind is OutcomeKind.RELEASED:
            return True
        return end.kind is OutcomeKind.FAILED and operation in self._ending and (not end.operator or end.outage)

    # ------------------------------------------------------------ reports

    def _change_state(self, event: RunEvent) -> None:
        def on_state(state: object) -> None:
            if state is None:
                self._post(self._superseded)

        self._scribe.submit(partial(self.records.change_state, event), on_state)
