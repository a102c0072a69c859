"""A start without state."""

import msgspec
from django.db import IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from console.accounts.refusals import Conflict, Refused
from console.checkpoints.models import Checkpoint
from console.jobs.models import Job, JobVersion, VersionState
from console.operations.job_state import JobState, require_startable
from console.operations.kinds.job.new_run import NewRun
from console.operations.models import ACTIVE_STATES, Operation, OperationKind, OperationState
from console.operations.operation_type import JobButton
from console.operations.params import NewRunParams
from console.operations.preview import Confirmation
from console.operations.restores.effects import RepeatedCheckpoints, require_no_repetition
from console.operations.restores.new_runs import new_run, new_run_target


class StartParams(NewRunParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`when_ready`: the start waits for the compilation of `version` (default then: the newest version)."""

    when_ready: bool = False


class Start(NewRun):
    """A start. With `when_ready` it has no run until its version is compiled."""

    kind = OperationKind.START
    params = StartParams
    button = JobButton(place=0, label="Start", key="b", asks=False)
    message = "The start was requested."
    similar = ("start", "restore", "restart")
    withdrawable = Q(run=None)

    def conflict(self, state: JobState) -> Conflict | None:
        return state.start_conflict()

    def confirmation(self, newest: Checkpoint | None, repeated: RepeatedCheckpoints | None, wait: str) -> Confirmation:
        """Of a start from empty state. `newest`: checkpoint to restore instead; `wait`: why the run would wait."""
        repetition = f"{repeated}; the output up to there is written a second time." if repeated else ""
        instead = f"To continue from the newest state, restore {newest} instead." if newest else ""
        return Confirmation(
            title="Start from empty state",
            sentences=tuple(filter(None, ("A new run reads all input from the beginning.", repetition, wait))),
            instead=instead,
            dangerous=repeated is not None,
            restores=newest is not None,
            repeats=repeated is not None,
        )

    def accept(self, row: Operation, params: StartParams) -> Operation:
        if awaited := _awaited_version(row.job, params):
            if awaited.state == VersionState.COMPILING:
                require_startable(row.job)
                return _accept_waiting(row, awaited)
            params = msgspec.structs.replace(params, version=awaited.pk)
        version, parallelism = new_run_target(row.job, params)
        require_startable(row.job)
        if not params.accept_repeated_output:
            require_no_repetition(row.job)
        return new_run(row, version, parallelism)

    def advance(self, row: Operation) -> None:
        """Starts the run of a compiled version, or ends the start of a version that cannot run."""
        if row.run is not None:
            super().advance(row)
        elif not JobVersion.objects.filter(pk=row.params["version"], state=VersionState.COMPILING).exists():
            self._start(row)

    def _start(self, row: Operation) -> None:
        params = StartParams(
            version=row.params["version"],
            parallelism=row.params.get("parallelism"),
            accept_repeated_output=row.params.get("accept_repeated_output", False),
        )
        try:
            with transaction.atomic():
                self.accept(row, params)
        except Refused as refused:
            _fail(row, refused.code, refused.detail)
        except IntegrityError:
            _fail(row, "run-active", "Another run was started meanwhile.")

    def withdrawal_refusal(self, row: Operation) -> str:
        is_waiting = row.run_id is None and row.state == OperationState.QUEUED
        return "" if is_waiting else super().withdrawal_refusal(row)


def _waiting_starts() -> QuerySet[Operation]:
    return Operation.objects.filter(kind=OperationKind.START, run=None, state__in=ACTIVE_STATES)


def _awaited_version(job: Job, params: StartParams) -> JobVersion | None:
    """The version whose compilation a start awaits, in any state. None: the start awaits none, or it does not exist.

    Default: the newest version. A start that awaits it never starts an older version, also if it was rejected already.
    """
    if not params.when_ready:
        return None
    versions = job.versions.filter(pk=params.version) if params.version else job.versions.order_by("-number")
    return versions.first()


def _accept_waiting(row: Operation, version: JobVersion) -> Operation:
    """Writes a start that waits for `version`.

    Raises:
        Conflict: another start of the job waits.
    """
    if _waiting_starts().filter(job=row.job).exists():
        raise Conflict("conflict", f"A start of {row.job.name} already waits for the compilation of a version.")
    row.params = {**row.params, "version": version.pk}
    row.phase = "waiting for the compilation"
    row.save(force_insert=True)
    return row


def _fail(row: Operation, code: str, message: str) -> None:
    Operation.objects.filter(pk=row.pk).update(
        state=OperationState.FAILED, phase="", ended_at=Now(), error={"code": code, "message": message}
    )
