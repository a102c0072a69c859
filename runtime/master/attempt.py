"""Attempt of a run: performs the effects of its machine by threads, the control server and the metadata thread.

`core.attempt` decides. A single loop reads a single mailbox, to which threads and other processes post.
"""

import queue
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final

import structlog

from runtime.core.attempt import effects, events
from runtime.core.attempt.failover_regions import RestartScope, region_cause
from runtime.core.attempt.machine import AttemptMachine, AttemptSettings
from runtime.core.attempt.result import AttemptFailed, AttemptResult, Ended, Released
from runtime.core.checkpoint.effects import LateAnswer, NotifyAborted, NotifyCompleted
from runtime.core.checkpoint.events import IdUnavailable, Ticked, TriggerFailed
from runtime.core.job.guarantee import CheckpointMode
from runtime.core.job.ids import OperatorId, SubtaskId, Token
from runtime.core.job.restart_strategy import SLOT_OUT_OF_MEMORY_CODE
from runtime.core.restore.state_assignment import SubtaskRestore
from runtime.core.snapshot.control import (
    CheckpointAborted,
    FollowWatermark,
    LiveOpened,
    ProbeSideOpened,
    TriggerSubtask,
)
from runtime.core.snapshot.manifest import Manifest
from runtime.io.control import messages
from runtime.io.control.endpoints import ControlServer, Hello
from runtime.io.logs import traceback_text
from runtime.master.config import MasterConfig
from runtime.master.delivery_backlog import DeliveryBacklog
from runtime.master.launcher import Launcher, describe_loss
from runtime.master.live_report import LiveReports
from runtime.master.metadata_effects import MetadataEffects
from runtime.master.metrics_history import MetricsHistory
from runtime.master.shared_folders import remove_markers
from runtime.master.slot_monitor import SlotMonitor
from runtime.ports import Clock, SnapshotStore
from runtime.run_store import LaunchTimes, RunStore

TICK_INTERVAL_S: Final = 0.25
MAX_TRACEBACK_CHARACTERS: Final = 20_000  #: the end of a longer traceback is recorded

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class AttemptStart:
    """The start of an attempt."""

    token: Token
    restored: Mapping[SubtaskId, SubtaskRestore]
    markers: Sequence[messages.Marker] = ()  #: of shared folders, for slots on other hosts; removed after deployment
    is_first: bool = False  #: first start of the run
    checkpoint: int = 0  #: the restored checkpoint; 0: none
    kept: Mapping[int, Token] = field(default_factory=dict)  #: slots that run on; see `AttemptFailed.kept`
    repeats_rows: bool = True  #: False: steps have sent other rows after a restart, so no row has a number
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
        self._records, self._launcher, self._clock = records, launcher, clock
        self._rules = config.job.failover_rules
        has_later_rows = config.coordinator.mode is CheckpointMode.AT_LEAST_ONCE  # from behind the barrier
        if has_later_rows or not start.repeats_rows:
            self._rules = replace(self._rules, numbered=frozenset())
        self._region_cause = region_cause(config.job.graph, self._rules)
        self._on_alive = on_alive
        self._epoch_ms = clock.now_ms() - int(clock.monotonic_ms())
        self._began_at = self._connected_at = self._now()
        self._mail: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._machine = AttemptMachine(self._settings())
        self._result: AttemptResult | None = None
        self._spark: dict[str, str] = {}
        self._monitor = SlotMonitor(config.job.graph)
        history = MetricsHistory(config.job.graph, clock.now_ms())
        self._metadata = MetadataEffects(
            config,
            self._token,
            records,
            store,
            start.restored.values(),
            self._machine.operations,
            history,
            self._now,
            self._post,
            self._handle,
            on_completed,
        )
        self._live_reports = LiveReports(
            self._monitor,
            self._machine.coordinator,
            history,
            records,
            lambda: {**facts(), **self._spark, **self._progress()},
            clock.now_ms,  # `_now` stands still while the host is suspended
        )

    def _settings(self) -> AttemptSettings:
        config, start = self._config, self._start
        restores = any(restored.snapshots for restored in start.restored.values())
        return AttemptSettings(
            job=config.job_id,
            token=self._token,
            graph=config.job.graph,
            coordinator=config.coordinator,
            began_at=self._began_at,
            is_resumed=restores or any(not config.job.sources[uid].bounded for uid in start.inputs),
            start_timeout_ms=config.slots.start_ms,
            heartbeat_timeout_ms=config.heartbeat_timeout_ms,
            metadata_timeout_ms=config.metadata_timeout_ms,
            rules=self._rules,
            kept=start.kept,
            checkpoint=start.checkpoint,
            has_backlog=DeliveryBacklog(config.job.sinks).has_sinks,
        )

    def _now(self) -> int:
        """Milliseconds since the epoch, by a clock that does not jump within the attempt."""
        return self._epoch_ms + int(self._clock.monotonic_ms())

    def _progress(self) -> Mapping[str, Any]:
        machine = self._machine
        return {
            "region": asdict(self._region_cause),
            "sources_paused": machine.are_sources_paused,
            "deploying_ms": self._now() - self._began_at if machine.running_since is None else None,
            "undeployed_slots": sorted(set(range(self._config.job.graph.parallelism)) - machine.deployed_slots),
        }

    @property
    def newest_report(self) -> Mapping[str, Any]:
        return self._live_reports.newest

    @property
    def cancel_operations(self) -> Sequence[str]:
        """The operations that requested a cancel."""
        return self._machine.cancel_operations

    # ------------------------------------------------------------ from other threads

    def poke(self) -> None:
        """Checks for new operations of the run."""
        self._post(lambda: self._handle(events.OperationsWaiting(self._now())))

    def release(self) -> None:
        """Ends the attempt so that another worker can claim the run."""
        self._post(lambda: self._handle(events.ReleaseRequested(self._now())))

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
        try:
            self._launcher.launch(self._config.job, self._token, secret, control.address, self._on_slot_exit)
            while self._machine.result is None:
                self._turn()
        finally:
            result = self._shut_down(control)
        return result

    def _turn(self) -> None:
        self._on_alive()
        try:
            self._mail.get(timeout=self._mail_timeout_s())()
            while self._machine.result is None and not self._mail.empty():
                self._mail.get()()
        except queue.Empty:
            pass
        self._tick(self._now())
        if self._metadata.thread.is_hung:
            self._handle(events.MetadataHung(self._now()))
        self._live_reports.write_if_due(self._clock.monotonic_ms())

    def _mail_timeout_s(self) -> float:
        """Seconds until the machine's next wake-up, at most a tick."""
        wake_at = self._machine.next_wake
        return TICK_INTERVAL_S if wake_at is None else min(TICK_INTERVAL_S, max(0, wake_at - self._now()) / 1000)

    def _tick(self, at: int) -> None:
        """Handles a tick. An error at a trigger fails that checkpoint only, and the trigger timer goes on."""
        try:
            self._handle(Ticked(at))
        except Exception as error:
            log.error("a checkpoint could not be triggered", traceback=traceback_text(error))
            self._handle(TriggerFailed(at, f"{type(error).__name__}: {error}"))

    def _shut_down(self, control: ControlServer) -> AttemptResult:
        """Shuts the slots down and waits for pending metadata writes."""
        if self._machine.result is None:
            self._fail(AttemptFailed("the master failed"))
        result = self._machine.result
        kept = result.kept if isinstance(result, AttemptFailed) else {}
        for slot in range(self._config.job.graph.parallelism):
            self._control.send(slot, messages.Detach() if slot in kept else messages.Shutdown())
        control.close()
        if isinstance(result, AttemptFailed) and not result.is_final:
            self._launcher.rest(result.lost_slot, kept)
        else:
            self._launcher.stop()
        self._live_reports.write_last(self._clock.monotonic_ms(), is_end=isinstance(result, Ended))
        self._metadata.thread.close(timeout_s=10.0 if isinstance(result, Released) else 60.0)
        self._live_reports.close(timeout_s=60.0 if isinstance(result, Ended) else 2.0)
        self._remove_markers()
        while not self._mail.empty():  # a manifest in flight may have been recorded
            self._mail.get()()
        self._handle(events.ShutDownCompleted(self._now()))
        assert self._result is not None, "a completed shutdown ends the attempt"
        return self._result

    def _handle(self, event: events.AttemptEvent) -> None:
        if isinstance(event, IdUnavailable | TriggerFailed):
            self._live_reports.not_triggered += 1
        for effect in self._machine.handle(event):
            self._perform(effect)

    def _fail(self, failure: AttemptFailed) -> None:
        self._handle(events.WorkFailed(self._now(), failure))

    # ------------------------------------------------------------ slots

    def _on_slot_exit(self, slot: int | None, error: str) -> None:
        self._post(partial(self._fail, AttemptFailed(error, slot=slot)))

    def _on_hello(self, slot: int, hello: Hello) -> None:
        self._monitor.on_hello(slot, hello, self._clock.monotonic_ms())
        kept_since = None if hello.kept_since is None else Token(hello.kept_since)
        log_file = self._monitor.log_of(slot)
        self._handle(events.SlotConnected(self._now(), slot, hello.address, log_file, kept_since))

    def _on_message(self, slot: int, message: messages.ToMaster) -> None:
        now, at = self._clock.monotonic_ms(), self._now()
        self._monitor.on_message(slot, now, message if isinstance(message, messages.Heartbeat) else None)
        match message:
            case messages.Deployed():
                self._handle(events.SlotDeployed(at, slot))
            case messages.Retired(address, processed, ended):
                self._handle(events.SlotRetired(at, slot, address, tuple(processed), ended))
            case messages.ChannelBroken(peer, detail):
                self._handle(events.ChannelLost(at, slot, peer, detail))
            case messages.Report(subtask, report):
                self._handle(events.ReportReceived(at, subtask, report))
            case messages.Heartbeat():
                self._handle(events.HeartbeatReceived(at, slot))
            case messages.SlotFailed():
                log.error("slot failed", slot=slot, detail=message.detail, traceback=message.traceback)
                self._fail(_slot_failure(slot, message))

    def _on_lost(self, slot: int, reason: str) -> None:
        detail = describe_loss(reason, self._monitor.memory_of(slot))
        self._handle(events.SlotLost(self._now(), slot, detail))

    def _broadcast(self, message: messages.ToSlot) -> None:
        self._send(range(self._config.job.graph.parallelism), message)

    def _send(self, slots: Iterable[int], message: messages.ToSlot) -> None:
        for slot in slots:
            self._control.send(slot, message)

    # ------------------------------------------------------------ effects

    def _perform(self, effect: effects.AttemptEffect) -> None:
        match effect:
            case TriggerSubtask() | FollowWatermark():
                self._control.send(effect.subtask.index, effect)
            case ProbeSideOpened() | LiveOpened():
                self._broadcast(effect)
            case NotifyCompleted(permit, subtasks):
                self._send({subtask.index for subtask in subtasks}, messages.ConfirmCheckpoint(permit.checkpoint))
            case NotifyAborted(checkpoint, subtasks):
                self._send({subtask.index for subtask in subtasks}, CheckpointAborted(checkpoint))
            case effects.RetireSubtasks(slots, operators):
                self._send(slots, messages.Retire(list(operators)))
            case effects.DeploySlots():
                self._send(effect.kept, messages.Continue())
                self._deploy(effect)
            case effects.StartSubtasks():
                self._start_subtasks()
            case effects.PauseSources(paused):
                log.info("sources paused: too many epochs await delivery" if paused else "sources resumed")
                self._broadcast(messages.SetSourcesPaused(paused))
            case effects.AnnounceOperation(request):
                log.info("operation taken", **request.log_fields)
                self._send(self._machine.deployed_slots, messages.OperationTaken(request.log_fields))
            case effects.ShutDown(result):
                if isinstance(result, AttemptFailed):
                    log.error("attempt fails", token=self._token, detail=result.detail)
            case effects.End(result):
                self._result = result
            case LateAnswer():
                log.info("late answer to a checkpoint ignored", subtask=str(effect.subtask), answer=repr(effect))
            case _:
                self._metadata.perform(effect)

    def _deploy(self, effect: effects.DeploySlots) -> None:
        log.info("every slot is there", token=self._token)
        self._connected_at = self._now()
        config, start, addresses, graph = self._config, self._start, effect.addresses, self._config.job.graph
        scope = effect.scope or RestartScope(graph, frozenset(addresses.keys() - effect.kept))
        for slot in sorted(addresses.keys() - effect.kept):
            deploy = messages.Deploy(
                config.job_id,
                config.storage,
                dict(addresses),
                [
                    restored
                    for subtask, restored in start.restored.items()
                    if subtask.index == slot and scope.restarts(subtask)
                ],
                config.coordinator.mode,
                list(start.markers),
                start.is_first,
                config.slot_memory_bytes,
                dict(start.inputs),
                [each.since(start.checkpoint) for each in effect.processed if each.channel.source == slot],
                config.coordinator.alignment_timeout_ms,
            )
            self._control.send(slot, deploy)

    def _start_subtasks(self) -> None:
        self._spark = {"spark_ui": self._launcher.ui_address, "spark_application": self._launcher.application}
        log.info("every slot is deployed", token=self._token)
        self._metadata.thread.submit(self._remove_markers, once=True)
        self._broadcast(messages.Start())
        listed, opened = (self._epoch_ms + int(at) for at in (self._start.listed_at, self._start.opened_at))
        times = LaunchTimes(listed=listed, opened=opened, connected=self._connected_at, deployed=self._now())
        self._metadata.thread.submit(partial(self._records.record_launch, times))

    def _remove_markers(self) -> None:
        remove_markers(self._start.markers, self._config.job_id, self._token)


def _slot_failure(slot: int, failure: messages.SlotFailed) -> AttemptFailed:
    """An attempt in which `slot` reported its own failure; all slots are still connected.

    A process that exceeded its memory bound is replaced: an allocator does not return all of its memory.
    """
    return AttemptFailed(
        failure.detail,
        failure.operator,
        failure.is_final,
        tuple(failure.events),
        damaged_file=failure.damaged_file,
        fingerprint=failure.fingerprint,
        is_outage=failure.is_outage,
        code=failure.code,
        slot=slot,
        lost_slot=slot if failure.code == SLOT_OUT_OF_MEMORY_CODE else None,
        traceback=failure.traceback[-MAX_TRACEBACK_CHARACTERS:],
    )
