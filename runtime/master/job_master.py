"""Job master: a run from claim to end, attempt after attempt.

Before an attempt it restores (`restore`), during an attempt it deletes old checkpoints (`retention`), and after a
failed attempt it restarts or gives up (`failover`). A `Launcher` starts slots and a `RunStore` holds the run's records:
this module uses neither Spark nor Postgres.
"""

import random
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

import structlog

from runtime.core.attempt.failover import Failover, GiveUp, Restart
from runtime.core.attempt.result import (
    AttemptFailed,
    AttemptResult,
    Canceled,
    Ended,
    LauncherBroken,
    Released,
    SavepointCompleted,
    Superseded,
    master_failure,
)
from runtime.core.job.ids import OperatorId, SubtaskId, Token
from runtime.core.job.lifecycle import MasterExitCode, RunEvent
from runtime.core.job.messages import CheckpointKind
from runtime.core.job.restart_strategy import OUTAGE_CODE, ROWS_NOT_REPEATED_CODE
from runtime.core.restore.state_assignment import SubtaskRestore, restores_apart
from runtime.core.snapshot.manifest import Manifest
from runtime.core.subtask.spec import check_overtaking
from runtime.errors import CorruptState, EnvironmentFailure, JobRejected, WeirError, is_outage
from runtime.io.control.messages import Marker
from runtime.io.logs import traceback_text
from runtime.master.attempt import Attempt, AttemptStart
from runtime.master.config import MasterConfig
from runtime.master.delivery_backlog import DeliveryBacklog
from runtime.master.end_reports import EndReports
from runtime.master.launcher import Launcher
from runtime.master.metadata_thread import RETRY_INTERVAL_S
from runtime.master.output_commit import check_expiry, commit_pending, connector_call
from runtime.master.restore import Restorer
from runtime.master.retention import Retention
from runtime.master.shared_folders import check_roots, write_markers
from runtime.master.slot_wait import SlotWait
from runtime.ports import Clock, ListsInput, SnapshotStore
from runtime.run_store import RunStore, late_rows

MAX_FUTILE_RESTARTS: Final = 3  #: in part, without a checkpoint or savepoint: the cause may lie in a slot that was kept
MAX_PARTIAL_RESTARTS: Final = 20  #: then all slots restart once: only then are leftovers of failed slots removed

log = structlog.get_logger()


class _Interrupted(Exception):
    """A release, a cancel or a newer attempt interrupts a wait of the master."""

    def __init__(self, result: Released | Canceled | Superseded) -> None:
        super().__init__(result)
        self.result = result


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
        self._kept: Mapping[int, Token] = {}  #: slots that run on between two attempts
        self._partial_restarts = 0  #: since all slots restarted
        self._futile_restarts = 0  #: of these, since the last checkpoint or savepoint
        self._repeats_rows = True  #: False once a step has sent other rows after a restart
        self._had_slots = config.has_had_slots
        self._inputs: dict[OperatorId, bytes | None] = {}  #: listings of sources, made before their first attempt
        self._failover = Failover(config.restart, config.outage_backoff)
        self._retention = Retention(config, records, store, clock, self._retry)
        self._restorer = Restorer(config, records, store, self._retention, clock, self._retry)

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
            exit_code = None
            while exit_code is None:
                try:
                    result = self._try_attempt()
                    detail = result.detail if isinstance(result, AttemptFailed) else ""
                    log.info("attempt ended", token=self._token, result=type(result).__name__, detail=detail)
                    exit_code = self._on_result(result)
                except _Interrupted as interrupted:
                    exit_code = self._on_result(interrupted.result)
            return exit_code
        finally:
            self._launcher.stop()

    def _try_attempt(self) -> AttemptResult:
        """An attempt with its preparation. Any error fails the attempt, since only a recorded failure is seen."""
        try:
            return self._prepare_and_run()
        except _Interrupted:
            raise
        except Exception as error:
            log.error("an attempt raised", token=self._token, traceback=traceback_text(error))
            failed = master_failure(error)
            return replace(failed, kept=self._kept) if failed.is_outage else failed

    def _prepare_and_run(self) -> AttemptResult:
        try:
            savepoint = self._restorer.final_savepoint()
        except CorruptState as error:
            return AttemptFailed(str(error), is_final=True, damaged_file=error.file)
        if savepoint is not None:
            return SavepointCompleted(savepoint)
        self._check_interrupt()
        check_expiry(self._config.job.sinks, self._config.coordinator)
        if self._config.coordinator.alignment_timeout_ms:
            check_overtaking(self._config.job.graph)
        check_roots(self._config.job)  # a folder may have become a link since the last attempt
        manifest = self._restorer.restore_point()
        if not restores_apart(manifest, self._config.job.graph):
            self._keep_slots({})
        restored = self._restorer.restore(manifest, self._token, oldest=min([self._token, *self._kept.values()]))
        inputs = self._list_inputs(restored)
        is_first = not self._had_slots
        wait = self._slot_wait()
        missing = self._await_slots(wait)
        if missing is not None:
            return missing
        markers = self._write_markers()
        self._partial_restarts = self._partial_restarts + 1 if self._kept else 0
        self._futile_restarts = self._futile_restarts + 1 if self._kept else 0
        return self._run_attempt(
            AttemptStart(
                token=self._token,
                restored=restored,
                markers=markers,
                is_first=is_first,
                checkpoint=0 if manifest is None else manifest.checkpoint,
                kept=self._kept,
                repeats_rows=self._repeats_rows,
                inputs=inputs,
                listed_at=wait.began_at,
                opened_at=wait.opened_at,
            )
        )

    def _list_inputs(self, restored: Mapping[SubtaskId, SubtaskRestore]) -> Mapping[OperatorId, bytes]:
        """The listings of the sources, by uid: the same in every attempt of this master.

        Restored state holds a listing, or comes from a savepoint without one. The input of a source that holds one may
        be gone by now. A reader that needs this input raises the error of the listing when it opens.
        """
        with_state = {subtask.operator for subtask, state in restored.items() if state.snapshots or state.finished}
        ended = with_state - {subtask.operator for subtask, state in restored.items() if not state.finished}
        for uid, source in self._config.job.sources.items():
            if uid in self._inputs or uid in ended or not isinstance(source, ListsInput):
                continue
            tolerated = (EnvironmentFailure, JobRejected) if uid in with_state else ()
            with suppress(*tolerated), connector_call(uid, "its list_input"):
                self._inputs[uid] = source.list_input()
        return {uid: listing for uid, listing in self._inputs.items() if listing is not None}

    def _write_markers(self) -> list[Marker]:
        config = self._config
        if not self._launcher.spans_hosts:
            return []
        return write_markers(config.job, config.job_id, self._token, config.storage)

    def _slot_wait(self) -> SlotWait:
        timeouts, reports = self._config.slots, self._config.shortage_reports
        patience_ms = timeouts.replacement_ms if self._had_slots else timeouts.request_ms
        return SlotWait(self._launcher, self._clock, self._report_slots, patience_ms, timeouts.start_ms, reports)

    def _await_slots(self, wait: SlotWait) -> AttemptFailed | LauncherBroken | None:
        """Waits for slots before the attempt consumes anything. Returns a result if there will be no attempt."""
        self._launcher.prepare(self._config.job, self._token)
        asked_at = self._clock.monotonic_ms()
        while (result := wait.poll()) is None and not wait.is_over:
            self._on_alive()
            if self._released.wait(wait.next_pause_s()):
                raise _Interrupted(Released())
            if self._clock.monotonic_ms() - asked_at > self._config.wait_step_s * 1000:
                self._check_interrupt()
                asked_at = self._clock.monotonic_ms()
        if result is not None and self._released.is_set():
            raise _Interrupted(Released())
        self._had_slots = self._had_slots or result is None
        if result is not None:
            self._launcher.stop()  # a process that hangs before it connects is not waited for again
        return result

    def _report_slots(self, event: RunEvent | None, live: Mapping[str, Any]) -> None:
        if event is not None:
            self._retry(partial(self._records.change_state, event))
        with suppress(EnvironmentFailure):  # the next report comes within seconds
            self._records.write_live({**live, "restarts": self._restarts})

    def _run_attempt(self, start: AttemptStart) -> AttemptResult:
        attempt = Attempt(
            self._config,
            start,
            self._records,
            self._store,
            self._launcher,
            self._clock,
            self._live_facts,
            self._retention.on_completed,
            self._on_alive,
        )
        self._attempt = attempt
        if self._released.is_set():  # released before the attempt existed
            attempt.release()
        result = attempt.run()
        self._cancel_operations += attempt.cancel_operations
        return result

    def _live_facts(self) -> Mapping[str, Any]:
        """Entries of each live report."""
        return {
            "restarts": self._restarts,
            "parallelism": self._config.job.graph.parallelism,
            "unreadable": self._retention.unreadable_folders,
        }

    # ------------------------------------------------------------ after an attempt

    def _on_result(self, result: AttemptResult) -> MasterExitCode | None:
        """Records the end of an attempt. Returns None if another attempt follows."""
        match result:
            case Ended(savepoint):
                return self._end_complete_run(savepoint)
            case SavepointCompleted(savepoint):
                return self._end_by_savepoint(savepoint)
            case Canceled():
                return self._cancel_run()
            case Released():
                return self._release_run()
            case Superseded():
                return MasterExitCode.SUPERSEDED
            case LauncherBroken(detail):
                return self._leave_to_fresh_master(detail)
            case AttemptFailed():
                return self._on_failure(result)

    def _on_failure(self, failed: AttemptFailed) -> MasterExitCode | None:
        self._futile_restarts = 0 if failed.has_progressed else self._futile_restarts
        if self._partial_restarts == MAX_PARTIAL_RESTARTS or self._futile_restarts == MAX_FUTILE_RESTARTS:
            failed = replace(failed, kept={})
        if failed.code == ROWS_NOT_REPEATED_CODE:
            self._repeats_rows = False
        if failed.damaged_file:
            decision = self._restorer.fall_back(failed)
        else:
            draw = random.random()  # noqa: S311 - it keeps no secret
            decision = self._failover.decide(failed, self._clock.now_ms(), draw)
            if decision.failure["code"] == OUTAGE_CODE:
                log.warning("waiting for storage or a service", **decision.failure)
        if isinstance(decision, GiveUp):
            return self._end_run(RunEvent.GAVE_UP, "failed", decision.failure)
        self._keep_slots(failed.kept)
        return self._begin_restart(decision)

    def _keep_slots(self, kept: Mapping[int, Token]) -> None:
        """Ends the slots that were kept and are so no longer."""
        if self._kept.keys() - kept:
            self._launcher.rest(None, kept)
        self._kept = kept

    def _begin_restart(self, restart: Restart) -> MasterExitCode | None:
        """Takes the token of the next attempt and waits until it is due."""
        if loss := self._launcher.loss:
            return self._leave_to_fresh_master(f"{restart.reason}; then {loss}")
        token = self._retry(partial(self._records.next_attempt, restart.reason, restart.failure))
        if token is None:
            return MasterExitCode.SUPERSEDED
        self._token = token
        self._restarts += 1
        self._launcher.prepare(self._config.job, token)
        self._retry(partial(self._records.change_state, RunEvent.ATTEMPT_FAILED))
        self._retry(self._records.requeue_operations)
        until = self._clock.monotonic_ms() + restart.delay_ms
        while (rest_ms := until - self._clock.monotonic_ms()) > 0:
            self._pause(rest_ms / 1000)
        return None

    def _leave_to_fresh_master(self, reason: str) -> MasterExitCode:
        """Records why no slots can be started from this process any more. Its supervisor sees an exit code only."""
        log.error("no slots can be started from this process any more", detail=reason)
        self._retry(partial(self._records.end_attempt, "failed", reason))
        return MasterExitCode.BROKEN

    # ------------------------------------------------------------ the end of the run

    def _end_complete_run(self, savepoint: Manifest | None) -> MasterExitCode:
        """Ends the run because every subtask has ended."""
        with self._end_reports() as reports:
            self._await_delivery(reports)
            if savepoint is not None:
                self._retry(partial(self._retention.drop_committed_output, savepoint))
        return self._end_run(RunEvent.ENDED, "ended", savepoint=savepoint.checkpoint if savepoint else None)

    def _end_reports(self) -> EndReports:
        newest = self._attempt.newest_report if self._attempt else self._live_facts()
        return EndReports(self._records, newest)

    def _end_run(
        self,
        event: RunEvent,
        outcome: str,
        failure: Mapping[str, Any] | None = None,
        savepoint: int | None = None,
    ) -> MasterExitCode:
        for uid, rows in late_rows(self._attempt.newest_report if self._attempt else {}).items():
            log.warning("rows came late: dropped, or sent to the side output", step=uid, rows=rows, token=self._token)
        reason = str(failure["message"]) if failure else ""
        self._retry(partial(self._records.end_attempt, outcome, reason))
        state = self._retry(partial(self._records.change_state, event, failure, savepoint))
        return MasterExitCode.SUPERSEDED if state is None else MasterExitCode.DONE

    def _release_run(self) -> MasterExitCode:
        self._retry(partial(self._records.end_attempt, "released"))
        return MasterExitCode.RELEASED

    def _cancel_run(self) -> MasterExitCode:
        self._retry(partial(self._records.change_state, RunEvent.CANCEL_REQUESTED))  # the first try may have failed
        exit_code = self._end_run(RunEvent.ENDED, "canceled")
        for operation in self._cancel_operations:
            self._retry(partial(self._records.complete_operation, operation, {}, None))
        return exit_code

    def _end_by_savepoint(self, savepoint: Manifest) -> MasterExitCode:
        """Ends the run because the savepoint of its stop or drain is recorded, even if slots failed since.

        Pending commits are in the manifest. A restart would undo the user's stop. If a cancel or a release interrupts
        the commit, the savepoint stays: a restore, or the next master, commits its output.
        """
        with self._end_reports() as reports:
            problem = self._commit_last(savepoint, reports)
            if problem is None:
                self._await_delivery(reports)
                self._retry(partial(self._retention.drop_committed_output, savepoint))
        if problem is not None and self._cancel_operations:
            return self._cancel_run()
        if problem is not None and self._released.is_set():
            return self._release_run()  # the next master tries again
        if problem is not None:
            text = f"the savepoint {savepoint.checkpoint} is complete, but its output could not be committed: {problem}"
            return self._end_run(RunEvent.GAVE_UP, "failed", {"code": "commit-failed", "message": text})
        drain = savepoint.kind is CheckpointKind.DRAIN
        request = RunEvent.DRAIN_REQUESTED if drain else RunEvent.STOP_REQUESTED
        for event in (RunEvent.DEPLOYED, request):  # a later master finds the run in `starting`
            self._retry(partial(self._records.change_state, event))
        return self._end_run(RunEvent.ENDED, "ended", savepoint=savepoint.checkpoint)

    def _commit_last(self, savepoint: Manifest, reports: EndReports) -> str | None:
        """Commits pending output of a run that has ended. Returns the error if it gives up, else None.

        Waits out an outage until it ends or the run is canceled. Retries other failures for `commit_timeout_ms`.
        """
        deadline = self._clock.monotonic_ms() + self._config.commit_timeout_ms
        while True:
            self._on_alive()
            try:
                commit_pending(self._config.job.sinks, savepoint, self._token)
                return None
            except (WeirError, OSError) as error:
                log.warning("output is not committed yet", checkpoint=savepoint.checkpoint, error=str(error))
                reports.on_commit_failure(str(error))
                if not is_outage(error) and self._clock.monotonic_ms() > deadline:
                    return str(error)
            self._pause(self._config.wait_step_s)

    def _await_delivery(self, reports: EndReports) -> None:
        """Waits until the sinks' stages have delivered every epoch.

        A stage that gives up fails the run, which supersedes this master. After a cancel a restore delivers the epochs.
        """
        backlog = DeliveryBacklog(self._config.job.sinks)
        logged: Mapping[OperatorId, int] = {}
        while waiting := self._retry(backlog.undelivered_epochs):
            reports.on_backlog(waiting)
            if waiting != logged:
                logged = waiting
                log.info("waiting for the delivery of epochs", backlog=dict(waiting))
            self._pause(self._config.wait_step_s)
        reports.on_delivered()

    # ------------------------------------------------------------ waits

    def _pause(self, wait_s: float) -> None:
        """Waits `wait_s`, at most `wait_step_s`. Raises _Interrupted at a release, a cancel or a newer attempt."""
        self._on_alive()
        if self._released.wait(min(wait_s, self._config.wait_step_s)):
            raise _Interrupted(Canceled() if self._cancel_operations else Released())
        self._check_interrupt()

    def _check_interrupt(self) -> None:
        """Raises _Interrupted after a cancel or a newer attempt, since between attempts no loop checks for them."""
        try:
            requests = self._records.take_operations(only_cancel=True)
        except EnvironmentFailure:
            return
        if requests is None:
            raise _Interrupted(Superseded())
        for request in requests:
            if request.id not in self._cancel_operations:
                log.info("operation taken", **request.log_fields)
                self._cancel_operations.append(request.id)
        if requests:
            raise _Interrupted(Canceled())

    def _retry(self, work: Callable[[], Any]) -> Any:
        """Calls `work` until database and storage are available. After a release it raises the last error."""
        while True:
            self._on_alive()
            try:
                return work()
            except (EnvironmentFailure, OSError) as error:
                log.warning("waiting for the database or storage", error=str(error))
                if self._released.wait(RETRY_INTERVAL_S):
                    raise
