"""Job master: a run from claim to end, attempt after attempt.

It implements the decisions that `core.restore` and `core.job` leave to a host: it reads the manifest, commits
pending committables of a restored checkpoint, removes orphaned output, starts attempts, and stops when superseded. A
`Launcher` starts slots and `RunRecords` hold the facts: Spark and Postgres do not appear here.
"""

import random
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from typing import Any, Final, Literal

import structlog

from runtime.core.job.ids import OperatorId, SubtaskId, Token
from runtime.core.job.lifecycle import RunEvent
from runtime.core.job.messages import CheckpointKind
from runtime.core.job.restart_strategy import (
    MIN_RUN_WITHIN_MEMORY_MS,
    OUTAGE,
    SLOT_OUT_OF_MEMORY,
    ExponentialDelay,
    Failure,
    FixedDelay,
    NoRestart,
    RepeatedErrors,
    RestartStrategy,
)
from runtime.core.job.settings import CoordinatorSettings, SlotTimeouts
from runtime.core.restore.mapping import check_restorable
from runtime.core.restore.state_assignment import Restored, assign
from runtime.core.snapshot.commit import owed, permit_for_recorded, retained_committables, without_committed
from runtime.core.snapshot.manifest import Manifest
from runtime.core.snapshot.manifest_codec import home_of
from runtime.dataflow.plan import CompiledJob
from runtime.errors import CorruptState, EnvironmentFailure, JobRejected, WeirError
from runtime.io.control.messages import Marker
from runtime.io.manifests import read_manifest
from runtime.io.pins import pinned
from runtime.io.savepoints import copy_home, manifest_at, note_committed, show_home
from runtime.master import retention
from runtime.master.attempt import Attempt
from runtime.master.epoch_backlog import Backlog
from runtime.master.launcher import AttemptConfig, Launcher, Outcome, OutcomeKind
from runtime.master.metadata_thread import RETRY_S
from runtime.master.outages import is_outage
from runtime.master.restore_fallback import assess
from runtime.master.shared_folders import check_roots, leave_markers
from runtime.master.slot_wait import SlotWait
from runtime.ports import Clock, ReleasesInput, SnapshotStore
from runtime.run_store import RunRecords

log = structlog.get_logger()


class Exit(IntEnum):
    """Exit codes of a job master, read by its supervisor."""

    DONE = 0  #: a terminal state is recorded
    SUPERSEDED = 4  #: a newer attempt exists: this process exits
    RELEASED = 5  #: the run may be claimed again
    BROKEN = 6  #: this process can start no more slots: a fresh process must take over


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
    had_slots: bool = False  #: an earlier master of this run had slots
    retained_checkpoints: int = 5
    on_corrupt_checkpoint: Literal["fail", "previous"] = "fail"
    allow_unmapped: bool = False  #: drop state of operators that the job lacks
    slot_memory_bytes: int | None = None  #: bound on the resident memory of each slot's process; None: unbounded


PAUSE_SLICE_S: Final = 1.0
COMMIT_PATIENCE_MS: Final = 60_000
#: For outages of storage or a service. A run of a minute resets the delay.
OUTAGE_BACKOFF: Final = ExponentialDelay(initial_ms=1_000, max_ms=60_000, multiplier=2, reset_after_ms=60_000)


class JobMaster:
    """Create, then `run` once. `poke` and `release` are thread-safe."""

    def __init__(
        self,
        config: MasterConfig,
        records: RunRecords,
        store: SnapshotStore,
        launcher: Launcher,
        clock: Clock,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        """`alive` is called repeatedly as long as the master is not hung."""
        self._config, self._records, self._store = config, records, store
        self._launcher, self._clock, self._alive = launcher, clock, alive
        self._token = config.token
        self._released = threading.Event()
        self._attempt: Attempt | None = None
        self._cancelled_by: list[str] = []
        self._restarts = 0
        self._repeated_errors = RepeatedErrors()
        self._had_slots = config.had_slots
        self._failures = 0
        self._outages = 0  #: in a row
        self._memory_failures = 0  #: in a row
        self._facts: dict[str, Any] = {}  #: for the live report
        self._point: str | None = None  #: folder of the checkpoint to restore
        self._passed_over: tuple[str, ...] = ()  #: folders of unreadable checkpoints
        self._discarded: list[str] = []  #: folders of discarded checkpoints whose files still exist
        self._owing: list[Manifest] = []  #: savepoints whose output may not be committed yet

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

    def run(self) -> Exit:
        """Blocks until the run has ended, was released, or this master is superseded."""
        try:
            self._launcher.prepare(self._config.job, self._token)
            self._patiently(self._records.requeue_operations)
            while True:
                outcome = self._one_attempt()
                log.info("attempt ended", token=self._token, outcome=str(outcome.kind), detail=outcome.detail)
                done = self._after(outcome)
                if done is not None:
                    return done
        finally:
            self._launcher.stop()

    def _one_attempt(self) -> Outcome:
        try:
            finished = self._patiently(self._records.final_savepoint)
            if finished is not None:
                return self._ended_by(finished)
            interrupted = self._told_meanwhile()
            if interrupted is not None:
                return interrupted
            check_roots(self._config.job)  # a folder may have become a link since the last attempt
            restored = self._restore()
        except JobRejected as error:
            return Outcome(OutcomeKind.FAILED, str(error), final=True, code=error.code)
        except CorruptState as error:
            return Outcome(OutcomeKind.FAILED, str(error), damaged=error.file)
        except (WeirError, OSError) as error:
            return Outcome(OutcomeKind.FAILED, str(error), outage=is_outage(error))
        first = not self._had_slots
        missing = self._await_slots()
        if missing is not None:
            return missing
        try:
            markers = self._markers()
        except OSError as error:
            return Outcome(OutcomeKind.FAILED, str(error), outage=is_outage(error))
        return self._attempt_with(restored, markers, first=first)

    def _markers(self) -> list[Marker]:
        config = self._config
        if not self._launcher.spans_hosts:
            return []
        return leave_markers(config.job, config.job_id, self._token, config.storage)

    def _await_slots(self) -> Outcome | None:
        """Waits for slots before the attempt consumes anything. Returns an outcome if there will be no attempt."""
        self._launcher.prepare(self._config.job, self._token)
        timeouts = self._config.slots
        patience_ms = timeouts.replacement_ms if self._had_slots else timeouts.request_ms
        wait = SlotWait(self._launcher, self._clock, self._report_slots, patience_ms, timeouts.start_ms)
        asked_at = self._clock.monotonic_ms()
        while (outcome := wait.turn()) is None and not wait.is_over:
            self._alive()
            self._released.wait(wait.next_pause_s())
            if self._clock.monotonic_ms() - asked_at > PAUSE_SLICE_S * 1000:
                outcome, asked_at = self._told_meanwhile(), self._clock.monotonic_ms()
            if outcome is not None or self._released.is_set():
                break
        if self._released.is_set():
            return Outcome(OutcomeKind.RELEASED)
        self._had_slots = self._had_slots or outcome is None
        return outcome

    def _report_slots(self, event: RunEvent | None, live: Mapping[str, Any]) -> None:
        if event is not None:
            self._patiently(partial(self._records.change_state, event))
        with suppress(EnvironmentFailure):  # the next report comes within seconds
            self._records.write_live({**live, "restarts": self._restarts})

    def _ended_by(self, folder: str) -> Outcome:
        """Outcome if a stop or drain is recorded: the run is not restarted, not even from the checkpoint before."""
        self._point = folder
        try:
            return Outcome(OutcomeKind.FAILED, savepoint=read_manifest(self._store, folder))
        except CorruptState as error:
            return Outcome(OutcomeKind.FAILED, str(error), final=True, damaged=error.file)

    def _attempt_with(
        self, restored: Mapping[SubtaskId, Restored], markers: Sequence[Marker], *, first: bool
    ) -> Outcome:
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
            first=first,
            slot_memory_bytes=self._config.slot_memory_bytes,
        )
        attempt = Attempt(config, self._records, self._store, self._launcher, self._clock, self._completed, self._alive)
        self._attempt = attempt
        if self._released.is_set():  # released before the attempt existed
            attempt.release()
        outcome = attempt.run()
        self._cancelled_by += attempt.cancelled_by
        return outcome

    # ------------------------------------------------------------ restoring

    def _restore(self) -> Mapping[SubtaskId, Restored]:
        """Commits pending output of the restored checkpoint, removes orphaned output, and assigns state to subtasks."""
        graph = self._config.job.graph
        folder = self._point = self._patiently(partial(self._records.restore_point, self._passed_over))
        manifest = None if folder is None else self._restorable(folder)
        if manifest is not None:
            copy_home(self._store, folder, manifest)
            self._commit_owed(manifest)  # may reject the manifest's committables
            show_home(self._store, folder, manifest)
        retained, unreadable = self._retained()
        if manifest is not None:
            self._owing = [each for each in retained if each.kind is CheckpointKind.SAVEPOINT and owed(each)]
            self._note_committed(manifest)
        self._owing = []
        if not unreadable:  # prepared output of an unreadable checkpoint is not known
            self._clean([*retained, *([] if manifest is None else [manifest])])  # it may have no record
            self._release([*retained, *([] if manifest is None else [manifest])])
        self._sweep(retained, unreadable)
        self._patiently(partial(self._records.note_restored, None if manifest is None else home_of(manifest)))
        if manifest is None:
            return {subtask: Restored(subtask=subtask) for subtask in graph.subtasks}
        log.info("restoring", checkpoint=manifest.checkpoint, kind=str(manifest.kind), token=self._token)
        return assign(manifest, graph)

    def _restorable(self, folder: str) -> Manifest:
        manifest = manifest_at(self._store, folder)
        graph, job_id = self._config.job.graph, self._config.job_id
        check_restorable(manifest, graph, job_id, allow_unmapped=self._config.allow_unmapped)
        return manifest

    def _retained(self) -> tuple[list[Manifest], list[str]]:
        """Restorable manifests of the job, and the folders of unreadable manifests.

        Files that an unreadable manifest (damaged, or of newer software) may need stay until it is discarded.
        """
        found, unreadable = [], []
        for folder in self._patiently(self._records.retained):
            try:
                found.append(read_manifest(self._store, folder))
            except (CorruptState, JobRejected) as error:
                log.error(
                    "a retained checkpoint is unreadable: what it may need stays", folder=folder, error=str(error)
                )
                unreadable.append(folder)
        self._facts["unreadable"] = unreadable
        return found, unreadable

    def _commit_owed(self, manifest: Manifest) -> None:
        permit = permit_for_recorded(manifest, self._token)
        for uid, committables in owed(manifest).items():
            committer = self._config.job.sinks[uid].committer()
            count = committer.commit(permit, committables)
            committer.commit_epoch(permit, committables)
            log.info("committed pending output", operator=uid, files=len(committables), newly=count)

    def _note_committed(self, later: Manifest) -> None:
        """Removes output that `later` shows to be committed from savepoints. Reads a manifest only if it changes."""
        left = [(savepoint, without_committed(savepoint, later)) for savepoint in self._owing]
        for before, after in left:
            if after != before:
                self._write_committed(before, later)
        self._owing = [after for _, after in left if owed(after)]

    def _write_committed(self, savepoint: Manifest, later: Manifest | None = None) -> None:
        """Updates the stored manifest, whose paths lie in the savepoint's folder. A damaged manifest stays as it is."""
        try:
            note_committed(self._store, read_manifest(self._store, home_of(savepoint)), later)
        except (CorruptState, JobRejected) as error:
            log.warning("a savepoint cannot record what is committed", folder=home_of(savepoint), error=str(error))

    def _clean(self, retained: list[Manifest]) -> None:
        for uid, sink in self._config.job.sinks.items():
            keep = retained_committables(retained, uid)
            removed = sink.committer().clean(self._config.job_id, uid, self._token, keep)
            if removed:
                log.info("removed leftovers of older attempts", operator=uid, files=removed)

    # ------------------------------------------------------------ after an attempt

    def _after(self, outcome: Outcome) -> Exit | None:
        """Records the end of an attempt. Returns None if another attempt follows."""
        if outcome.kind is OutcomeKind.SUPERSEDED:
            return Exit.SUPERSEDED
        if outcome.savepoint is not None and outcome.kind is not OutcomeKind.ENDED:
            return self._end_by_savepoint(outcome.savepoint)
        match outcome.kind:
            case OutcomeKind.ENDED:
                interrupted = self._await_delivery()
                if interrupted is not None:
                    return interrupted
                if outcome.savepoint is None:
                    return self._end(RunEvent.ENDED, "ended")
                self._patiently(partial(self._write_committed, outcome.savepoint))
                return self._end(RunEvent.ENDED, "ended", savepoint=outcome.savepoint.checkpoint)
            case OutcomeKind.CANCELED:
                return self._end_cancelled()
            case OutcomeKind.RELEASED:
                return self._end_released()
            case OutcomeKind.BROKEN:
                log.error("no slots can be started from this process any more", detail=outcome.detail)
                return Exit.BROKEN
        return self._after_damage(outcome) if outcome.damaged else self._try_again(outcome)

    def _end(
        self,
        event: RunEvent,
        outcome: str,
        failure: Mapping[str, Any] | None = None,
        savepoint: int | None = None,
    ) -> Exit:
        reason = str(failure["message"]) if failure else ""
        self._patiently(partial(self._records.end_attempt, outcome, reason))
        state = self._patiently(partial(self._records.change_state, event, failure, savepoint))
        return Exit.SUPERSEDED if state is None else Exit.DONE

    def _end_released(self) -> Exit:
        self._patiently(partial(self._records.end_attempt, "released"))
        return Exit.RELEASED

    def _end_cancelled(self) -> Exit:
        self._patiently(partial(self._records.change_state, RunEvent.CANCEL_REQUESTED))  # recorded already, or lost
        done = self._end(RunEvent.ENDED, "canceled")
        for operation in self._cancelled_by:
            self._patiently(partial(self._records.settle_operation, operation, {}, None))
        return done

    def _told_meanwhile(self) -> Outcome | None:
        """Checks for a cancel or a newer attempt, since between attempts no loop does."""
        try:
            requests = self._records.take_operations(only_cancel=True)
        except EnvironmentFailure:
            return None
        if requests is None:
            return Outcome(OutcomeKind.SUPERSEDED)
        self._cancelled_by += [request.id for request in requests if request.id not in self._cancelled_by]
        return Outcome(OutcomeKind.CANCELED) if requests else None

    def _end_by_savepoint(self, savepoint: Manifest) -> Exit:
        """Ends the run because the savepoint of its stop or drain is recorded, even if slots failed since.

        Pending commits are in the manifest. A restart would undo the user's stop.
        """
        problem = self._commit_last(savepoint)
        if problem is not None and self._cancelled_by:  # the savepoint stays: a restore commits its output
            return self._end_cancelled()
        if problem is not None and self._released.is_set():  # the next master finds the savepoint and retries
            return self._end_released()
        if problem is not None:
            text = f"the savepoint {savepoint.checkpoint} is complete, but its output could not be committed: {problem}"
            return self._end(RunEvent.GAVE_UP, "failed", {"code": "commit-failed", "message": text})
        interrupted = self._await_delivery()
        if interrupted is not None:
            return interrupted
        self._patiently(partial(self._write_committed, savepoint))
        drain = savepoint.kind is CheckpointKind.DRAIN
        request = RunEvent.DRAIN_REQUESTED if drain else RunEvent.STOP_REQUESTED
        for event in (RunEvent.DEPLOYED, request):  # a later master finds the run in `starting`
            self._patiently(partial(self._records.change_state, event))
        return self._end(RunEvent.ENDED, "ended", savepoint=savepoint.checkpoint)

    def _commit_last(self, savepoint: Manifest) -> str | None:
        """Commits pending output of a run that has ended. Returns the error if it gives up, else None.

        Waits out an outage until it ends or the run is canceled. Retries other failures for `COMMIT_PATIENCE_MS`.
        """
        deadline = self._clock.monotonic_ms() + COMMIT_PATIENCE_MS
        while True:
            self._alive()
            try:
                self._commit_owed(savepoint)
                return None
            except (WeirError, OSError) as error:
                log.warning("output is not committed yet", checkpoint=savepoint.checkpoint, error=str(error))
                given_up = not is_outage(error) and self._clock.monotonic_ms() > deadline
                if given_up or self._released.wait(PAUSE_SLICE_S) or self._told_meanwhile() is not None:
                    return str(error)

    def _await_delivery(self) -> Exit | None:
        """Waits until the sinks' stages have delivered every epoch. Returns an exit code only if the wait is cut short.

        A stage that gives up fails the run, which supersedes this master. After a cancel a restore delivers the epochs.
        """
        backlog = Backlog(self._config.job.sinks)
        logged: Mapping[OperatorId, int] = {}
        while waiting := self._patiently(backlog.waiting):
            self._alive()
            if waiting != logged:
                logged = waiting
                log.info("waiting for the delivery of epochs", backlog=dict(waiting))
            if self._released.wait(PAUSE_SLICE_S):
                return self._end_released()
            interrupted = self._told_meanwhile()
            if interrupted is not None:
                return self._after(interrupted)
        return None

    def _try_again(self, outcome: Outcome) -> Exit | None:
        if self._repeated_errors.is_final(outcome.error, outcome.progressed):
            outcome = replace(outcome, final=True, detail=f"{outcome.detail}. It failed twice at the same record")
        outage = outcome.outage and not outcome.final and not isinstance(self._config.restart, NoRestart)
        if outage:
            return self._wait_out(outcome)
        delay_ms = None if outcome.final else self._next_delay_ms(outcome)
        failure: dict[str, Any] = {
            "code": outcome.code or ("final" if outcome.final else "attempt-failed"),
            "message": outcome.detail,
            "operator": outcome.operator,
            "story": list(outcome.story),
        }
        if outcome.code != SLOT_OUT_OF_MEMORY or self._as_failure(outcome).progressed:
            self._memory_failures = 0
        if outcome.code == SLOT_OUT_OF_MEMORY:
            self._memory_failures += 1
            failure["tries"] = self._memory_failures
        if delay_ms is None:
            return self._end(RunEvent.GAVE_UP, "failed", failure)
        return self._next_attempt(outcome.detail, failure, delay_ms)

    def _wait_out(self, outcome: Outcome) -> Exit | None:
        """Retries without limit, at growing intervals. The restart strategy is not consulted and counts no failure."""
        verdict = OUTAGE_BACKOFF.after(self._as_failure(outcome), self._outages)
        self._outages = verdict.failures
        assert verdict.delay_ms is not None, "an exponential delay never gives up"
        failure = {
            "code": OUTAGE,
            "message": outcome.detail,
            "operator": outcome.operator,
            "tries": self._outages,
            "next_at": self._clock.now_ms() + verdict.delay_ms,
        }
        log.warning("waiting for storage or a service", **failure)
        return self._next_attempt(outcome.detail, failure, verdict.delay_ms)

    def _after_damage(self, outcome: Outcome) -> Exit | None:
        """Restores the previous checkpoint only if the job's policy allows it, since this repeats output.

        The restart strategy is not consulted: each such attempt has fewer checkpoints to choose from.
        """
        folders = [*self._passed_over, *([self._point] if self._point is not None else [])]
        damage = self._patiently(
            lambda: assess(
                outcome.damaged, outcome.operator, outcome.detail, folders, self._records, self._store, self._restorable
            )
        )
        log.error("a checkpoint cannot be restored", **damage.failure)
        if self._config.on_corrupt_checkpoint == "fail" or outcome.final or damage.previous is None:
            return self._end(RunEvent.GAVE_UP, "failed", damage.failure)
        self._passed_over = damage.passed_over
        return self._next_attempt(damage.resort, damage.failure, 0)

    def _next_attempt(self, reason: str, failure: Mapping[str, Any], delay_ms: int) -> Exit | None:
        if not self._launcher.usable:
            log.error("no slots can be started from this process any more", detail=reason)
            return Exit.BROKEN
        token = self._patiently(partial(self._records.next_attempt, reason, failure))
        if token is None:
            return Exit.SUPERSEDED
        self._token = token
        self._restarts += 1
        self._launcher.prepare(self._config.job, token)
        self._patiently(partial(self._records.change_state, RunEvent.ATTEMPT_FAILED))
        self._patiently(self._records.requeue_operations)
        return self._pause(delay_ms)

    def _next_delay_ms(self, outcome: Outcome) -> int | None:
        verdict = self._config.restart.after(self._as_failure(outcome), self._failures)
        self._failures = verdict.failures
        return verdict.delay_ms

    @staticmethod
    def _as_failure(outcome: Outcome) -> Failure:
        draw = random.random()  # noqa: S311 - it keeps no secret
        progressed = outcome.progressed
        if outcome.code == SLOT_OUT_OF_MEMORY:
            progressed = outcome.ran_ms >= MIN_RUN_WITHIN_MEMORY_MS
        return Failure(ran_ms=outcome.ran_ms, progressed=progressed, draw=draw)

    def _pause(self, delay_ms: int) -> Exit | None:
        """Waits before the next attempt. Returns early at a release, a cancel or a newer attempt, else None."""
        until = self._clock.monotonic_ms() + delay_ms
        while (rest_ms := until - self._clock.monotonic_ms()) > 0:
            self._alive()
            if self._released.wait(min(rest_ms / 1000, PAUSE_SLICE_S)):
                return self._end_released()
            interrupted = self._told_meanwhile()
            if interrupted is not None:
                return self._after(interrupted)
        return None

    # ------------------------------------------------------------ retention

    def _completed(self, manifest: Manifest) -> None:
        """Called on the metadata thread after each completed checkpoint."""
        if manifest.kind is CheckpointKind.SAVEPOINT and owed(manifest):
            self._owing.append(manifest)
        else:
            self._note_committed(manifest)
        self._discarded += self._records.discard_beyond(self._config.retained_checkpoints)
        if self._discarded:
            retained, unreadable = self._retained()
            self._discarded = retention.discard(self._store, self._discarded, retained, unreadable, self._pinned)
            if not unreadable:
                self._release(retained)

    def _release(self, retained: list[Manifest]) -> None:
        """Deletes input that no retained checkpoint needs. A failure is retried at the next checkpoint."""
        for uid, source in self._config.job.sources.items():
            if isinstance(source, ReleasesInput):
                try:
                    released = source.release(retention.lists_of(retained, uid))
                except (OSError, EnvironmentFailure) as error:
                    log.warning("processed input is not deleted yet", operator=uid, error=str(error))
                else:
                    log.debug("released input", operator=uid, pieces=released)

    def _sweep(self, retained: Sequence[Manifest], unreadable: Collection[str]) -> None:
        """Deletes leftovers. Checkpoints that are being read stay until a later completion."""
        kept = {home_of(manifest) for manifest in retained}
        read = retention.readable(self._store, [folder for folder in self._pinned() if folder not in kept])
        self._discarded = [home_of(manifest) for manifest in read if not manifest.kind.is_savepoint]
        retention.sweep(self._store, self._token, [*retained, *read], unreadable)

    def _pinned(self) -> frozenset[str]:
        """Folders of checkpoints that other processes are reading."""
        return pinned(self._store, self._clock.now_ms())

    def _patiently(self, work: Callable[[], Any]) -> Any:
        """Retries while the database or storage is unavailable. A release ends the retries."""
        while True:
            self._alive()
            try:
                return work()
            except (EnvironmentFailure, OSError) as error:
                log.warning("waiting for the database or storage", error=str(error))
                if self._released.wait(RETRY_S):
                    raise
