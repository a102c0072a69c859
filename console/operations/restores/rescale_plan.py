"""The effects of a rescale before it is requested: its target, the slots, and the expected time without output."""

from dataclasses import dataclass
from hashlib import blake2s
from typing import Final

from django.db.models import Sum

from console.accounts.refusals import Conflict, Refused
from console.checkpoints.models import Checkpoint
from console.checkpoints.selectors import continuable, newest_of
from console.jobs.models import Job, JobVersion, Run
from console.jobs.services import require_parallelism
from console.operations.expected_times import ExpectedDuration, expected_durations
from console.operations.job_state import ending_operations, run_conflict
from console.operations.models import OperationKind
from console.operations.params import RescaleParams
from console.operations.restores.effects import require_mapping
from console.operations.restores.new_runs import version_of
from console.operations.restores.origin import Origin
from console.runs.selectors import latest_run
from runtime.core.job.lifecycle import TERMINAL_STATES, RunAct

_OTHER_RUN: Final = "The run of this job is no longer the one that was shown. Nothing was done: read the new plan."
_SAME: Final = "The run has this parallelism and version already. Choose another: a rescale stops the run."


@dataclass(frozen=True, slots=True, kw_only=True)
class RescaleCost:
    """`slots_elsewhere`: of runs of other jobs, which hold or wait for as many as their parallelism.

    `stop` and `restore` are expected durations.
    """

    newest: Checkpoint | None
    stop: ExpectedDuration | None
    restore: ExpectedDuration | None
    slots_elsewhere: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RescalePlan:
    """`refusal`: why the rescale is not possible; then `version` and `parallelism` may be unknown.

    `plan_hash` covers the run that stops: its version, parallelism and state.
    """

    run: Run | None
    version: JobVersion | None
    parallelism: int | None
    cost: RescaleCost
    refusal: Refused | None

    @property
    def plan_hash(self) -> str:
        return rescale_hash(self.run)


def rescale_hash(run: Run | None) -> str:
    """Changes with the run that a rescale of its job stops; "" without a run."""
    if run is None:
        return ""
    return blake2s(repr((run.pk, run.version_id, run.parallelism)).encode(), digest_size=16).hexdigest()


def rescale_plan(job: Job, params: RescaleParams) -> RescalePlan:
    """The effects of a rescale now. It changes nothing."""
    run, version, parallelism, refusal = latest_run(job), None, None, None
    try:
        run, version, parallelism = rescale_target(job, params)
    except Refused as refused:
        refusal = refused
    return RescalePlan(
        run=run, version=version, parallelism=parallelism, cost=rescale_cost(job, run), refusal=refusal
    )  # fmt: skip


def rescale_target(job: Job, params: RescaleParams) -> tuple[Run, JobVersion, int]:
    """The run to stop, and the version and the parallelism of the run that continues.

    The newest checkpoint stands for the savepoint: a target that cannot continue from it is refused before the stop.

    Raises:
        Refused: the rescale is not possible.
    """
    run = latest_run(job)
    if conflict := run_conflict(run, RunAct.STOP, ending_operations(run)):
        raise conflict
    assert run is not None, "a job that never ran has a conflict"
    plan_hash = rescale_hash(run)
    if params.plan_hash not in (None, plan_hash):
        raise Conflict("plan-changed", _OTHER_RUN, "params.plan_hash", plan_hash=plan_hash)
    version = run.version if params.version is None else version_of(job, params.version)
    parallelism = params.parallelism or version.parallelism
    require_parallelism(parallelism, version.max_parallelism, "params.parallelism")
    if (version.pk, parallelism) == (run.version_id, run.parallelism):
        raise Refused("nothing-to-rescale", _SAME, "params.parallelism")
    if newest := continuable(job).filter(run=run).first():
        origin = Origin.from_row(job, newest)
        require_mapping(
            job, origin, version, parallelism, allow_unmapped=params.allow_unmapped, is_own_savepoint=True
        )  # fmt: skip
    return run, version, parallelism


def rescale_cost(job: Job, run: Run | None) -> RescaleCost:
    runs = Run.objects.exclude(state__in=TERMINAL_STATES).exclude(job=job)
    newest = newest_of(run)
    stop, restore = expected_durations(job.pk, (OperationKind.STOP, OperationKind.RESTORE), newest)
    return RescaleCost(
        newest=newest,
        stop=stop,
        restore=restore,
        slots_elsewhere=int(runs.aggregate(slots=Sum("parallelism", default=0))["slots"]),
    )
