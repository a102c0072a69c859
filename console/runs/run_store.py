"""State transitions of a run along the table of `runtime.core.job.lifecycle`, each under a lock on its row.

A lease belongs to the process that claimed the run (`lease_owner`), not to an attempt: a job master takes new tokens
under the same lease. When the console takes a run from a master it also advances the token. A master that is still
alive can then write no more rows.
"""

from pathlib import Path
from typing import Any

from django.conf import settings as django_settings
from django.db import connection, transaction
from django.db.models import F, Q
from django.db.models.functions import Coalesce, Greatest, Now

from console import wakeups
from console.accounts.models import User
from console.accounts.refusals import Refused
from console.jobs.models import Attempt, AttemptOutcome, Job, JobVersion, Run
from console.runs import standing_stages
from console.runs.lease import UNOWNED, next_token, owned_by
from runtime.core.job.lifecycle import TERMINAL_STATES, RunEvent, RunState, next_state
from runtime.core.snapshot import manifest


def inputs_folder(run: Run) -> Path:
    """Folder of the tables that the runs of a lineage read from Spark, with a subfolder per operator."""
    return Path(django_settings.WEIR_INPUTS) / str(run.job_id) / str(lineage_of(run))


def streams_folder(run: Run) -> Path:
    """Folder that a run shares with its standing stages for streamed input, with a subfolder per operator."""
    return Path(django_settings.WEIR_INPUTS) / manifest.streams_folder(run.job_id, lineage_of(run))


LEASED_STATES = (
    RunState.STARTING, RunState.WAITING, RunState.RUNNING, RunState.RESTARTING, RunState.STOPPING, RunState.DRAINING,
    RunState.CANCELLING,
)  # fmt: skip


_MAX_CHECKPOINT_NUMBER = 10**12  # checkpoint number reached after 3000 years at ten checkpoints a second
_MAX_TOKEN_LEAD = 100_000  # tokens that a savepoint may be ahead of this installation


def create(user: User | None, job: Job, version: JobVersion, parallelism: int, **restore: Any) -> Run:
    """Creates a queued run and its standing stages. Call it inside a transaction.

    `restore` are the columns of the run's origin: `restore_checkpoint`, `restore_path`, `allow_unmapped`.

    Raises:
        IntegrityError: the job has a run that has not ended.
    """
    continued = restore.get("restore_checkpoint")
    run = Run.objects.create(
        job=job, version=version, parallelism=parallelism, state=RunState.QUEUED.value, created_by=user,
        lineage=lineage_of(continued.run) if continued else None, **restore,
    )  # fmt: skip
    standing_stages.create(run)
    wakeups.after_commit(wakeups.SUPERVISE_TASK, run.pk)
    return run


def lineage_of(run: Run) -> int:
    """Id of the first run in the chain of runs that continue each other's checkpoints up to `run`."""
    return run.lineage or run.pk


def reserve_ids_above(job: Job, number: int, token: int) -> None:
    """Reserves checkpoint numbers and attempt tokens above those of a savepoint that has no row in this database.

    Raises:
        Refused: the number or the token is higher than any job or installation reaches.
    """
    if number > _MAX_CHECKPOINT_NUMBER:
        detail = f"The savepoint has the number {number}; the highest that a job can reach is {_MAX_CHECKPOINT_NUMBER}."
        raise Refused("unlikely-number", detail, "params.path")
    Job.objects.filter(pk=job.pk).update(last_checkpoint_id=Greatest("last_checkpoint_id", number))
    with connection.cursor() as cursor:
        cursor.execute("SELECT last_value FROM weir_token_seq")
        missing = token - cursor.fetchone()[0]
        if missing > _MAX_TOKEN_LEAD:
            detail = f"The savepoint has the attempt token {token}, {missing} above the newest one here."
            raise Refused("unlikely-attempt", detail, "params.path")
        # `nextval` in a loop, because `setval` would race with concurrent draws.
        cursor.execute("SELECT max(nextval('weir_token_seq')) FROM generate_series(1, %s)", [max(missing, 0)])


def claim(run_id: int, owner: str) -> int | None:
    """Claims a queued run. Returns the new attempt's token; None if another worker was first or the run has ended."""
    with transaction.atomic():
        claimed = {**owned_by(owner), "started_at": Coalesce(F("started_at"), Now()), "token": next_token()}
        if _transition(run_id, RunEvent.CLAIMED, **claimed) is None:
            return None
        return _open_attempt(run_id)


def renew(run_id: int, owner: str) -> bool:
    """Renews the lease. False if the run has ended or has another owner: the caller must stop running it."""
    rows = Run.objects.filter(pk=run_id, lease_owner=owner).exclude(state__in=TERMINAL_STATES)
    return bool(rows.update(lease_beat=F("lease_beat") + 1))


def restart(run_id: int, owner: str, reason: str, detail: dict[str, Any]) -> int | None:
    """Records the death of a master. Returns the next attempt's token; None if the run has ended or changed owner."""
    with transaction.atomic():
        state = _transition(run_id, RunEvent.ATTEMPT_FAILED, Q(lease_owner=owner), token=next_token())
        if state is None:
            return None
        _close_attempts(run_id, AttemptOutcome.FAILED, reason, detail)
        return None if state.is_terminal else _open_attempt(run_id)


def fail(run_id: int, failure: dict[str, Any], owner: str | None) -> bool:
    """Fails the run for good. False if the run had ended or the lease was lost. `owner` None accepts any owner."""
    only = None if owner is None else Q(lease_owner=owner)
    with transaction.atomic():
        state = _transition(run_id, RunEvent.GAVE_UP, only, token=next_token(), failure=failure)
        if state is not None:
            _close_attempts(run_id, AttemptOutcome.FAILED, failure["message"], {"log": failure["detail"].splitlines()})
    return state is not None


def release(run_id: int, owner: str, reason: str) -> RunState | None:
    """Releases the run for another worker to claim; a run in CANCELLING ends instead. Returns the new state."""
    return _release(run_id, Q(lease_owner=owner), AttemptOutcome.RELEASED, reason)


def revoke_lease(run_id: int, beat: int) -> RunState | None:
    """Releases the run; returns its new state. None if `lease_beat` is no longer `beat`, or if the run has ended."""
    return _release(run_id, Q(lease_beat=beat), AttemptOutcome.LOST, "The supervisor's lease was lost.")


def _release(run_id: int, only: Q, outcome: AttemptOutcome, reason: str) -> RunState | None:
    with transaction.atomic():
        state = _transition(run_id, RunEvent.RELEASED, only, **UNOWNED, releases=F("releases") + 1, token=next_token())
        if state is None:
            return None
        _close_attempts(run_id, outcome, reason)
        if state is RunState.QUEUED:
            wakeups.after_commit(wakeups.SUPERVISE_TASK, run_id)
    return state


def cancel_in_queue(run_id: int) -> bool:
    """Cancels an unclaimed run. False if a master has claimed the run, and must cancel it, or if the run has ended."""
    with transaction.atomic():
        unclaimed = Run.objects.select_for_update(no_key=True).filter(pk=run_id, state=RunState.QUEUED)
        return unclaimed.exists() and _transition(run_id, RunEvent.CANCEL_REQUESTED) is RunState.CANCELED


def has_ended(run_id: int) -> bool:
    return RunState(Run.objects.values_list("state", flat=True).get(pk=run_id)).is_terminal


def _transition(run_id: int, event: RunEvent, only: Q | None = None, **changes: Any) -> RunState | None:
    """Locks the row, looks up the transition, writes the state. None if the transition is illegal or the row
    does not match `only`.
    """
    condition = Q(pk=run_id) if only is None else Q(pk=run_id) & only
    run = Run.objects.select_for_update(no_key=True).filter(condition).only("state").first()
    target = None if run is None else next_state(run.run_state, event)
    if target is None:
        return None
    if target.is_terminal:
        changes |= {"ended_at": Now(), "lease_owner": ""}
    Run.objects.filter(pk=run_id).update(state=target.value, **changes)
    return target


def _open_attempt(run_id: int) -> int:
    """Creates an attempt under the token that the run's row has just received."""
    token = Run.objects.values_list("token", flat=True).get(pk=run_id)
    Attempt.objects.create(run_id=run_id, token=token, outcome=AttemptOutcome.RUNNING.value)
    return token


def _close_attempts(run_id: int, outcome: AttemptOutcome, reason: str, detail: dict[str, Any] | None = None) -> None:
    Attempt.objects.filter(run_id=run_id, ended_at=None).update(
        ended_at=Now(), outcome=outcome.value, reason=reason, detail=detail
    )
