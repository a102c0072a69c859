"""Job master: a run from claim to end, attempt after attempt.

It implements the decisions that `core.restore` and `core.job` leave to a host: it reads the manifest, commits
pending committables of a restored checkpoint, removes orphaned output, starts attempts, and stops when superseded. A
`Launcher` starts slots and `RunStore` holds the facts: Spark and Postgres do not appear here.
"""

import random
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal

import structlog

from runtime.core.job.ids import OperatorId, SubtaskId, Token
from runtime.core.job.lifecycle import MasterExitCode, RunEvent
from runtime.core.job.messages import CheckpointKind
from runtime.core.job.restart_strategy import (
    MIN_RUN_WITHIN_MEMORY_MS,
    OUTAGE_CODE,
    SLOT_OUT_OF_MEMORY_CODE,
    AttemptFailure,
    ExponentialDelay,
    FixedDelay,
    NoRestart,
    RepeatedErrors,
    RestartStrategy,
)
from runtime.core.job.settings import CoordinatorSettings, SlotTimeouts
from runtime.core.restore.mapping import check_restorable
from runtime.core.restore.state_assignment import SubtaskRestore, assign_state
from runtime.core.snapshot.commit import pending_committables, pending_only, permit_for_manifest, retained_committables
from runtime.core.snapshot.manifest import Manifest
from runtime.core.snapshot.manifest_codec import manifest_folder
from runtime.dataflow.plan import CompiledJob
from runtime.errors import CorruptState, EnvironmentFailure, JobRejected, WeirError
from runtime.io.control.messages import Marker
from runtime.io.manifests import read_manifest
from runtime.io.pins import active_pin_folders
from runtime.io.savepoints import drop_committed_output, import_files, manifest_at, publish_import
from runtime.master import retention
from runtime.master.attempt import Attempt
from runtime.master.epoch_backlog import DeliveryBacklog
from runtime.master.launcher import Launcher
from runtime.master.metadata_thread import RETRY_INTERVAL_S
from runtime.master.outages import is_outage
from runtime.master.restore_fallback import find_fallback
from runtime.master.result import AttemptConfig, AttemptResult, AttemptResultKind
from runtime.master.shared_folders import check_roots, write_markers
from runtime.master.slot_wait import SlotWait
from runtime.ports import Clock, ReleasesInput, SnapshotStore
from runtime.run_store import RunStore

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True)
class MasterConfig:
    """`storage` is the job's storage root, as slots open it; `host` is the master's address for slots."""

    job_id: str
    token: Token
    job: CompiledJob
    storage: str
    host: str = "127.0.0.1"
    coordinator: CoordinatorSettings = field(default_factory=CoordinatorSettings)
    restart: RestartStrategy = field(default_factory=FixedDelay)
    heartbeat_timeout_ms: int = 10_000
    slots: SlotTimeouts = field(default_factory=SlotTimeouts)
    has_had_slots: bool = False  #: an earlier master of this run had slots
    retained_checkpoints: int = 5
    on_corrupt_checkpoint: Literal["fail", "previous"] = "fail"
    allow_unmapped: bool = False  #: drop state of operators that the job lacks
    slot_memory_bytes: int | None = None  #: bound on the resident memory of each slot's process; None: unbounded


MAX_WAIT_STEP_S: Final = 1.0
COMMIT_TIMEOUT_MS: Final = 60_000
#: For outages of storage or a service. A run of a minute resets the delay.
OUTAGE_BACKOFF: Final = ExponentialDelay(initial_ms=1_000, max_ms=60_000, multiplier=2, reset_after_ms=60_000)


class JobMaster:
    """Create, then `run` once. `poke` and `release` are thread-safe."""

    def __init__(
        self,
        config: MasterConfig,
        records: RunStore,
        store: SnapshotStore,
        launcher: Launcher,
        clock: Clock,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        """`alive` is called repeatedly as long as the master is not hung."""
        self._config, self._records, self._store = config, records, store
        self._launcher, self._clock, self._on_alive = launcher, clock, alive
        self._token = config.token
        self._released = threading.Event()
        self._attempt: Attempt | None = None
        self._cancel_operations: list[str] = []
        self._restarts = 0
        self._repeated_errors = RepeatedErrors()
        self._had_slots = config.has_had_slots
        self._consecutive_failures = 0
        self._consecutive_outages = 0  #: in a row
        self._consecutive_memory_failures = 0  #: in a row
        self._facts: dict[str, Any] = {}  #: for the live report
        self._restore_folder: str | None = None  #: folder of the checkpoint to restore
        self._unusable_folders: tuple[str, ...] = ()  #: folders of unreadable checkpoints
        self._discarded_folders: list[str] = []  #: folders of discarded checkpoints whose files still exist
        self._pending_savepoints: list[Manifest] = []  #: savepoints whose output may not be committed yet

    # ------------------------------------------------------------ from other threads

    def poke(self) -> None:
        if self._attempt is not None:
            self._attempt.poke()

    def release(self) -> None:
        """Ends the attempt because the worker shuts down: another worker resumes the run from its last checkpoint."""
        self._released.set()
        if self._attempt is not None:
            self._attempt.release()

    # ------------------------------------------------------------ the run

    def run(self) -> MasterExitCode:
        """Blocks until the run has ended, was released, or this master is superseded."""
        try:
            self._launcher.prepare(self._config.job, self._token)
            self._retry(self._records.requeue_operations)
            while True:
                outcome = self._try_attempt()
                log.info("attempt ended", token=self._token, outcome=str(outcome.kind), detail=outcome.detail)
                done = self._on_attempt_end(outcome)
                if done is not None:
                    return done
        finally:
            self._launcher.stop()

    def _try_attempt(self) -> AttemptResult:
        try:
            finished = self._retry(self._records.final_savepoint)
            if finished is not None:
                return self._result_of_savepoint(finished)
            interrupted = self._check_cancel()
            if interrupted is not None:
                return interrupted
            check_roots(self._config.job)  # a folder may have become a link since the last attempt
            restored = self._restore()
        except JobRejected as error:
            return AttemptResult(AttemptResultKind.FAILED, str(error), is_final=True, code=error.code)
        except CorruptState as error:
            return AttemptResult(AttemptResultKind.FAILED, str(error), damaged_file=error.file)
        except (WeirError, OSError) as error:
            return AttemptResult(AttemptResultKind.FAILED, str(error), is_outage=is_outage(error))
        first = not self._had_slots
        missing = self._await_slots()
        if missing is not None:
            return missing
        try:
            markers = self._write_markers()
        except OSError as error:
            return AttemptResult(AttemptResultKind.FAILED, str(error), is_outage=is_outage(error))
        return self._run_attempt(restored, markers, first=first)

    def _write_markers(self) -> list[Marker]:
        config = self._config
        if not self._launcher.spans_hosts:
            return []
        return write_markers(config.job, config.job_id, self._token, config.storage)

    def _await_slots(self) -> AttemptResult | None:
        """Waits for slots before the attempt consumes anything. Returns an outcome if there will be no attempt."""
        self._launcher.prepare(self._config.job, self._token)
        timeouts = self._config.slots
        patience_ms = timeouts.replacement_ms if self._had_slots else timeouts.request_ms
        wait = SlotWait(self._launcher, self._clock, self._report_slots, patience_ms, timeouts.start_ms)
        asked_at = self._clock.monotonic_ms()
        while (outcome := wait.poll()) is None and not wait.is_over:
            self._on_alive()
            self._released.wait(wait.next_pause_s())
            if self._clock.monotonic_ms() - asked_at > MAX_WAIT_STEP_S * 1000:
                outcome, asked_at = self._check_cancel(), self._clock.monotonic_ms()
            if outcome is not None or self._released.is_set():
                break
        if self._released.is_set():
            return AttemptResult(AttemptResultKind.RELEASED)
        self._had_slots = self._had_slots or outcome is None
        return outcome

    def _report_slots(self, event: RunEvent | None, live: Mapping[str, Any]) -> None:
        if event is not None:
            self._retry(partial(self._records.change_state, event))
        with suppress(EnvironmentFailure):  # the next report comes within seconds
            self._records.write_live({**live, "restarts": self._restarts})

    def _result_of_savepoint(self, folder: str) -> AttemptResult:
        """Outcome if a stop or drain is recorded: the run is not restarted, not even from the checkpoint before."""
        self._restore_folder = folder
        try:
            return AttemptResult(AttemptResultKind.FAILED, savepoint=read_manifest(self._store, folder))
        except CorruptState as error:
            return AttemptResult(AttemptResultKind.FAILED, str(error), is_final=True, damaged_file=error.file)

    def _run_attempt(
        self, restored: Mapping[SubtaskId, SubtaskRestore], markers: Sequence[Marker], *, first: bool
    ) -> AttemptResult:
        config = AttemptConfig(
            job_id=self._config.job_id,
            token=self._token,
            job=self._config.job,
            storage=self._config.storage,
            host=self._config.host,
            settings=self._config.coordinator,
            heartbeat_timeout_ms=self._config.heartbeat_timeout_ms,
            slot_start_timeout_ms=self._config.slots.start_ms,
            restored=restored,
            restarts=self._restarts,
            facts=self._facts,
            markers=markers,
            is_first_start=first,
            slot_memory_bytes=self._config.slot_memory_bytes,
        )
        attempt = Attempt(
            config,
            self._records,
            self._store,
            self._launcher,
            self._clock,
            self._on_checkpoint_completed,
            self._on_alive,
        )
        self._attempt = attempt
        if self._released.is_set():  # released before the attempt existed
            attempt.release()
        outcome = attempt.run()
        self._cancel_operations += attempt.cancel_operations
        return outcome

    # ------------------------------------------------------------ restoring

    def _restore(self) -> Mapping[SubtaskId, SubtaskRestore]:
        """Commits pending output of the restored checkpoint, removes orphaned output, and assigns state to subtasks."""
        graph = self._config.job.graph
        folder = self._restore_folder = self._retry(partial(self._records.restore_point, self._unusable_folders))
        manifest = None if folder is None else self._read_restorable(folder)
        if manifest is not None:
            import_files(self._store, folder, manifest)
            self._commit_pending(manifest)  # may reject the manifest's committables
            publish_import(self._store, folder, manifest)
        retained, unreadable = self._retained_manifests()
        if manifest is not None:
            self._pending_savepoints = [
                each for each in retained if each.kind is CheckpointKind.SAVEPOINT and pending_committables(each)
            ]
            self._drop_committed_output(manifest)
        self._pending_savepoints = []
        if not unreadable:  # prepared output of an unreadable checkpoint is not known
            self._clean_output([*retained, *([] if manifest is None else [manifest])])  # it may have no record
            self._release_input([*retained, *([] if manifest is None else [manifest])])
        self._sweep_storage(retained, unreadable)
        self._retry(partial(self._records.record_restore, None if manifest is None else manifest_folder(manifest)))
        if manifest is None:
            return {subtask: SubtaskRestore(subtask=subtask) for subtask in graph.subtasks}
        log.info("restoring", checkpoint=manifest.checkpoint, kind=str(manifest.kind), token=self._token)
        return assign_state(manifest, graph)

    def _read_restorable(self, folder: str) -> Manifest:
        manifest = manifest_at(self._store, folder)
        graph, job_id = self._config.job.graph, self._config.job_id
        check_restorable(manifest, graph, job_id, allow_unmapped=self._config.allow_unmapped)
        return manifest

    def _retained_manifests(self) -> tuple[list[Manifest], list[str]]:
        """Restorable manifests of the job, and the folders of unreadable manifests.

        Files that an unreadable manifest (damaged, or of newer software) may need stay until it is discarded.
        """
        found, unreadable = [], []
        for folder in self._retry(self._records.retained_folders):
            try:
                found.append(read_manifest(self._store, folder))
            except (CorruptState, JobRejected) as error:
                log.error(
                    "a retained checkpoint is unreadable: what it may need stays", folder=folder, error=str(error)
                )
                unreadable.append(folder)
        self._facts["unreadable"] = unreadable
        return found, unreadable

    def _commit_pending(self, manifest: Manifest) -> None:
        permit = permit_for_manifest(manifest, self._token)
        for uid, committables in pending_committables(manifest).items():
            committer = self._config.job.sinks[uid].committer()
            count = committer.commit(permit, committables)
            committer.commit_epoch(permit, committables)
            log.info("committed pending output", operator=uid, files=len(committables), newly=count)

    def _drop_committed_output(self, later: Manifest) -> None:
        """Removes output that `later` shows to be committed from savepoints. Reads a manifest only if it changes."""
        left = [(savepoint, pending_only(savepoint, later)) for savepoint in self._pending_savepoints]
        for before, after in left:
            if after != before:
                self._rewrite_savepoint(before, later)
        self._pending_savepoints = [after for _, after in left if pending_committables(after)]

    def _rewrite_savepoint(self, savepoint: Manifest, later: Manifest | None = None) -> None:
        """Updates the stored manifest, whose paths lie in the savepoint's folder. A damaged manifest stays as it is."""
        try:
            drop_committed_output(self._store, read_manifest(self._store, manifest_folder(savepoint)), later)
        except (CorruptState, JobRejected) as error:
            log.warning(
                "a savepoint cannot record what is committed", folder=manifest_folder(savepoint), error=str(error)
            )

    def _clean_output(self, retained: list[Manifest]) -> None:
        for uid, sink in self._config.job.sinks.items():
            keep = retained_committables(retained, uid)
            removed = sink.committer().clean(self._config.job_id, uid, self._token, keep)
            if removed:
                log.info("removed leftovers of older attempts", operator=uid, files=removed)

    # ------------------------------------------------------------ after an attempt

    def _on_attempt_end(self, outcome: AttemptResult) -> MasterExitCode | None:
        """Records the end of an attempt. Returns None if another attempt follows."""
        if outcome.kind is AttemptResultKind.SUPERSEDED:
            return MasterExitCode.SUPERSEDED
        if outcome.savepoint is not None and outcome.kind is not AttemptResultKind.ENDED:
            return self._end_by_savepoint(outcome.savepoint)
        match outcome.kind:
            case AttemptResultKind.ENDED:
                interrupted = self._await_delivery()
                if interrupted is not None:
                    return interrupted
                if outcome.savepoint is None:
                    return self._end_run(RunEvent.ENDED, "ended")
                self._retry(partial(self._rewrite_savepoint, outcome.savepoint))
                return self._end_run(RunEvent.ENDED, "ended", savepoint=outcome.savepoint.checkpoint)
            case AttemptResultKind.CANCELED:
                return self._cancel_run()
            case AttemptResultKind.RELEASED:
                return self._release_run()
            case AttemptResultKind.BROKEN:
                log.error("no slots can be started from this process any more", detail=outcome.detail)
                return MasterExitCode.BROKEN
        return self._fall_back(outcome) if outcome.damaged_file else self._restart(outcome)

    def _end_run(
        self,
        event: RunEvent,
        outcome: str,
        failure: Mapping[str, Any] | None = None,
        savepoint: int | None = None,
    ) -> MasterExitCode:
        reason = str(failure["message"]) if failure else ""
        self._retry(partial(self._records.end_attempt, outcome, reason))
        state = self._retry(partial(self._records.change_state, event, failure, savepoint))
        return MasterExitCode.SUPERSEDED if state is None else MasterExitCode.DONE

    def _release_run(self) -> MasterExitCode:
        self._retry(partial(self._records.end_attempt, "released"))
        return MasterExitCode.RELEASED

    def _cancel_run(self) -> MasterExitCode:
        self._retry(partial(self._records.change_state, RunEvent.CANCEL_REQUESTED))  # recorded already, or lost
        done = self._end_run(RunEvent.ENDED, "canceled")
        for operation in self._cancel_operations:
            self._retry(partial(self._records.complete_operation, operation, {}, None))
        return done

    def _check_cancel(self) -> AttemptResult | None:
        """Checks for a cancel or a newer attempt, since between attempts no loop does."""
        try:
            requests = self._records.take_operations(only_cancel=True)
        except EnvironmentFailure:
            return None
        if requests is None:
            return AttemptResult(AttemptResultKind.SUPERSEDED)
        self._cancel_operations += [request.id for request in requests if request.id not in self._cancel_operations]
        return AttemptResult(AttemptResultKind.CANCELED) if requests else None

    def _end_by_savepoint(self, savepoint: Manifest) -> MasterExitCode:
        """Ends the run because the savepoint of its stop or drain is recorded, even if slots failed since.

        Pending commits are in the manifest. A restart would undo the user's stop.
        """
        problem = self._commit_last(savepoint)
        if problem is not None and self._cancel_operations:  # the savepoint stays: a restore commits its output
            return self._cancel_run()
        if problem is not None and self._released.is_set():  # the next master finds the savepoint and retries
            return self._release_run()
        if problem is not None:
            text = f"the savepoint {savepoint.checkpoint} is complete, but its output could not be committed: {problem}"
            return self._end_run(RunEvent.GAVE_UP, "failed", {"code": "commit-failed", "message": text})
        interrupted = self._await_delivery()
        if interrupted is not None:
            return interrupted
        self._retry(partial(self._rewrite_savepoint, savepoint))
        drain = savepoint.kind is CheckpointKind.DRAIN
        request = RunEvent.DRAIN_REQUESTED if drain else RunEvent.STOP_REQUESTED
        for event in (RunEvent.DEPLOYED, request):  # a later master finds the run in `starting`
            self._retry(partial(self._records.change_state, event))
        return self._end_run(RunEvent.ENDED, "ended", savepoint=savepoint.checkpoint)

    def _commit_last(self, savepoint: Manifest) -> str | None:
        """Commits pending output of a run that has ended. Returns the error if it gives up, else None.

        Waits out an outage until it ends or the run is canceled. Retries other failures for `COMMIT_TIMEOUT_MS`.
        """
        deadline = self._clock.monotonic_ms() + COMMIT_TIMEOUT_MS
        while True:
            self._on_alive()
            try:
                self._commit_pending(savepoint)
                return None
            except (WeirError, OSError) as error:
                log.warning("output is not committed yet", checkpoint=savepoint.checkpoint, error=str(error))
                given_up = not is_outage(error) and self._clock.monotonic_ms() > deadline
                if given_up or self._released.wait(MAX_WAIT_STEP_S) or self._check_cancel() is not None:
                    return str(error)

    def _await_delivery(self) -> MasterExitCode | None:
        """Waits until the sinks' stages have delivered every epoch. Returns an exit code only if the wait is cut short.

        A stage that gives up fails the run, which supersedes this master. After a cancel a restore delivers the epochs.
        """
        backlog = DeliveryBacklog(self._config.job.sinks)
        logged: Mapping[OperatorId, int] = {}
        while waiting := self._retry(backlog.undelivered_epochs):
            self._on_alive()
            if waiting != logged:
                logged = waiting
                log.info("waiting for the delivery of epochs", backlog=dict(waiting))
            if self._released.wait(MAX_WAIT_STEP_S):
                return self._release_run()
            interrupted = self._check_cancel()
            if interrupted is not None:
                return self._on_attempt_end(interrupted)
        return None

    def _restart(self, outcome: AttemptResult) -> MasterExitCode | None:
        if self._repeated_errors.is_final(outcome.fingerprint, outcome.has_progressed):
            outcome = replace(outcome, is_final=True, detail=f"{outcome.detail}. It failed twice at the same record")
        outage = outcome.is_outage and not outcome.is_final and not isinstance(self._config.restart, NoRestart)
        if outage:
            return self._restart_after_outage(outcome)
        delay_ms = None if outcome.is_final else self._next_delay_ms(outcome)
        failure: dict[str, Any] = {
            "code": outcome.code or ("final" if outcome.is_final else "attempt-failed"),
            "message": outcome.detail,
            "operator": outcome.operator,
            "story": list(outcome.events),
        }
        if outcome.code != SLOT_OUT_OF_MEMORY_CODE or self._failure_of(outcome).progressed:
            self._consecutive_memory_failures = 0
        if outcome.code == SLOT_OUT_OF_MEMORY_CODE:
            self._consecutive_memory_failures += 1
            failure["tries"] = self._consecutive_memory_failures
        if delay_ms is None:
            return self._end_run(RunEvent.GAVE_UP, "failed", failure)
        return self._next_attempt(outcome.detail, failure, delay_ms)

    def _restart_after_outage(self, outcome: AttemptResult) -> MasterExitCode | None:
        """Retries without limit, at growing intervals. The restart strategy is not consulted and counts no failure."""
        verdict = OUTAGE_BACKOFF.decide(self._failure_of(outcome), self._consecutive_outages)
        self._consecutive_outages = verdict.failures
        assert verdict.delay_ms is not None, "an exponential delay never gives up"
        failure = {
            "code": OUTAGE_CODE,
            "message": outcome.detail,
            "operator": outcome.operator,
            "tries": self._consecutive_outages,
            "next_at": self._clock.now_ms() + verdict.delay_ms,
        }
        log.warning("waiting for storage or a service", **failure)
        return self._next_attempt(outcome.detail, failure, verdict.delay_ms)

    def _fall_back(self, outcome: AttemptResult) -> MasterExitCode | None:
        """Restores the previous checkpoint only if the job's policy allows it, since this repeats output.

        The restart strategy is not consulted: each such attempt has fewer checkpoints to choose from.
        """
        folders = [*self._unusable_folders, *([self._restore_folder] if self._restore_folder is not None else [])]
        damage = self._retry(
            lambda: find_fallback(
                outcome.damaged_file,
                outcome.operator,
                outcome.detail,
                folders,
                self._records,
                self._store,
                self._read_restorable,
            )
        )
        log.error("a checkpoint cannot be restored", **damage.failure)
        if self._config.on_corrupt_checkpoint == "fail" or outcome.is_final or damage.previous is None:
            return self._end_run(RunEvent.GAVE_UP, "failed", damage.failure)
        self._unusable_folders = damage.unusable_folders
        return self._next_attempt(damage.fallback_reason, damage.failure, 0)

    def _next_attempt(self, reason: str, failure: Mapping[str, Any], delay_ms: int) -> MasterExitCode | None:
        if not self._launcher.is_usable:
            log.error("no slots can be started from this process any more", detail=reason)
            return MasterExitCode.BROKEN
        token = self._retry(partial(self._records.next_attempt, reason, failure))
        if token is None:
            return MasterExitCode.SUPERSEDED
        self._token = token
        self._restarts += 1
        self._launcher.prepare(self._config.job, token)
        self._retry(partial(self._records.change_state, RunEvent.ATTEMPT_FAILED))
        self._retry(self._records.requeue_operations)
        return self._wait_before_attempt(delay_ms)

    def _next_delay_ms(self, outcome: AttemptResult) -> int | None:
        verdict = self._config.restart.decide(self._failure_of(outcome), self._consecutive_failures)
        self._consecutive_failures = verdict.failures
        return verdict.delay_ms

    @staticmethod
    def _failure_of(outcome: AttemptResult) -> AttemptFailure:
        draw = random.random()  # noqa: S311 - it keeps no secret
        progressed = outcome.has_progressed
        if outcome.code == SLOT_OUT_OF_MEMORY_CODE:
            progressed = outcome.ran_ms >= MIN_RUN_WITHIN_MEMORY_MS
        return AttemptFailure(ran_ms=outcome.ran_ms, progressed=progressed, draw=draw)

    def _wait_before_attempt(self, delay_ms: int) -> MasterExitCode | None:
        """Waits before the next attempt. Returns early at a release, a cancel or a newer attempt, else None."""
        until = self._clock.monotonic_ms() + delay_ms
        while (rest_ms := until - self._clock.monotonic_ms()) > 0:
            self._on_alive()
            if self._released.wait(min(rest_ms / 1000, MAX_WAIT_STEP_S)):
                return self._release_run()
            interrupted = self._check_cancel()
            if interrupted is not None:
                return self._on_attempt_end(interrupted)
        return None

    # ------------------------------------------------------------ retention

    def _on_checkpoint_completed(self, manifest: Manifest) -> None:
        """Called on the metadata thread after each completed checkpoint."""
        if manifest.kind is CheckpointKind.SAVEPOINT and pending_committables(manifest):
            self._pending_savepoints.append(manifest)
        else:
            self._drop_committed_output(manifest)
        self._discarded_folders += self._records.discard_older(self._config.retained_checkpoints)
        if self._discarded_folders:
            retained, unreadable = self._retained_manifests()
            self._discarded_folders = retention.discard_checkpoints(
                self._store, self._discarded_folders, retained, unreadable, self._pinned_folders
            )
            if not unreadable:
                self._release_input(retained)

    def _release_input(self, retained: list[Manifest]) -> None:
        """Deletes input that no retained checkpoint needs. A failure is retried at the next checkpoint."""
        for uid, source in self._config.job.sources.items():
            if isinstance(source, ReleasesInput):
                try:
                    released = source.release(retention.list_states_of(retained, uid))
                except (OSError, EnvironmentFailure) as error:
                    log.warning("processed input is not deleted yet", operator=uid, error=str(error))
                else:
                    log.debug("released input", operator=uid, pieces=released)

    def _sweep_storage(self, retained: Sequence[Manifest], unreadable: Collection[str]) -> None:
        """Deletes leftovers. Checkpoints that are being read stay until a later completion."""
        kept = {manifest_folder(manifest) for manifest in retained}
        read = retention.readable_manifests(
            self._store, [folder for folder in self._pinned_folders() if folder not in kept]
        )
        self._discarded_folders = [manifest_folder(manifest) for manifest in read if not manifest.kind.is_savepoint]
        retention.sweep_orphans(self._store, self._token, [*retained, *read], unreadable)

    def _pinned_folders(self) -> frozenset[str]:
        """Folders of checkpoints that other processes are reading."""
        return active_pin_folders(self._store, self._clock.now_ms())

    def _retry(self, work: Callable[[], Any]) -> Any:
        """Retries while the database or storage is unavailable. A release ends the retries."""
        while True:
            self._on_alive()
            try:
                return work()
            except (EnvironmentFailure, OSError) as error:
                log.warning("waiting for the database or storage", error=str(error))
                if self._released.wait(RETRY_INTERVAL_S):
                    raise
