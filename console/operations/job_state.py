"""The state of a job as far as it decides which operations on the job are possible now.

Run states follow `runtime.core.job.lifecycle`, as in the job master.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from django.db.models import Exists

from console.accounts.refusals import Conflict
from console.checkpoints.selectors import restorable
from console.jobs.models import Job, Run
from console.jobs.services import archived_conflict, ready_versions, require_present
from console.operations.models import ACTIVE_STATES, Operation
from console.runs.selectors import latest_run
from runtime.core.job.lifecycle import RunAct, may_start, refusal

NO_READY_VERSION = "The job has no version that is ready"
#: By operation: the operations that must not be active on the run already, as the partial unique indexes enforce.
_RIVALS: Mapping[RunAct, tuple[RunAct, ...]] = {
    RunAct.STOP: (RunAct.STOP, RunAct.DRAIN),
    RunAct.DRAIN: (RunAct.STOP, RunAct.DRAIN),
    RunAct.CANCEL: (RunAct.CANCEL,),
}


class JobState:
    """A job with its latest run. Other rows are read when an operation first needs them.

    `active`: the active operations on the job; read if they are not given.
    """

    def __init__(self, job: Job, run: Run | None, active: Sequence[Operation] | None = None) -> None:
        self.run, self._job, self._active = run, job, active

    @cached_property
    def _ending(self) -> Sequence[Operation]:
        if self._active is None:
            return ending_operations(self.run)
        return [row for row in self._active if self.run and row.run_id == self.run.pk]

    @cached_property
    def _has_version_and_snapshot(self) -> tuple[bool, bool]:
        """Whether a version is ready, and whether a checkpoint can be restored."""
        facts = Exists(ready_versions(self._job)), Exists(restorable(self._job))
        is_ready, is_restorable = Job.objects.filter(pk=self._job.pk).values_list(*facts).get()
        return is_ready, is_restorable

    def run_conflict(self, act: RunAct) -> Conflict | None:
        return run_conflict(self.run, act, self._ending)

    def start_conflict(self) -> Conflict | None:
        """Why no run can begin."""
        if conflict := start_conflict(self.run) or archived_conflict(self._job):
            return conflict
        is_ready, _ = self._has_version_and_snapshot
        return None if is_ready else Conflict("no-ready-version", f"{NO_READY_VERSION}.")

    def restore_conflict(self) -> Conflict | None:
        """Why no run can begin from a snapshot of the job."""
        if conflict := self.start_conflict():
            return conflict
        _, is_restorable = self._has_version_and_snapshot
        detail = "The job has no completed checkpoint; a savepoint in another folder is restored over REST."
        return None if is_restorable else Conflict("no-checkpoint", detail)


def start_conflict(run: Run | None) -> Conflict | None:
    """Why a job cannot be started or restored after `run`, its latest run; None if it can be."""
    if run is None or may_start(run.run_state):
        return None
    return Conflict("run-active", f"Run {run.pk} is {run.state}; a job has one run at a time.")


def ending_operations(run: Run | None) -> tuple[Operation, ...]:
    """The active operations that end `run`."""
    return tuple(Operation.objects.filter(run=run, kind__in=_RIVALS, state__in=ACTIVE_STATES)) if run else ()


def run_conflict(run: Run | None, act: RunAct, ending: Sequence[Operation]) -> Conflict | None:
    """Why `act` is not possible on `run`, the latest run of a job; None if it is possible.

    `ending`: the active operations that end the run.
    """
    if run is None:
        return Conflict("never-run", "The job has never run.")
    if reason := refusal(run.run_state, act, batch=run.version.is_batch):
        return Conflict("illegal-state", reason)
    rival = next((operation for operation in ending if operation.kind in _RIVALS.get(act, ())), None)
    return Conflict("conflict", f"A {rival.kind} is already {rival.state}.") if rival else None


def require_latest(run: Run | None, run_id: int | None) -> None:
    """Raises Conflict if `run`, the latest of a job, is not the run of the request. None: the request names no run."""
    if run is not None and run_id not in (None, run.pk):
        detail = f"The request is for run {run_id}, but the latest run of the job is run {run.pk}."
        raise Conflict("run-changed", detail, "params.run", run=run.pk)


def require_startable(job: Job) -> None:
    require_present(job)
    if conflict := start_conflict(latest_run(job)):
        raise with_blockers(job, conflict)


def with_blockers(job: Job, conflict: Conflict) -> Conflict:
    """`conflict` with the unfinished run and the newest active operation of the job, if there are any."""
    run, detail = latest_run(job), conflict.detail
    active = Operation.objects.filter(job=job, state__in=ACTIVE_STATES).order_by("-created_at").first()
    facts: dict[str, Any] = {}
    if run is not None and not run.is_terminal:
        facts["run"] = run.pk
    if active is not None:
        facts["operation"] = str(active.pk)
        detail = f"{detail} Operation {active.pk} ({active.kind}) is {active.state}."
    return Conflict(conflict.code, detail, conflict.field, **{**conflict.facts, **facts})
