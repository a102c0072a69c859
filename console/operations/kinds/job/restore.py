"""A restore: a new run that begins with the state of a snapshot."""

from console.accounts.refusals import Conflict
from console.jobs.services import lock_job
from console.operations.job_state import JobState, require_latest, require_startable
from console.operations.kinds.job.new_run import NewRun
from console.operations.models import Operation, OperationKind
from console.operations.operation_type import JobButton
from console.operations.params import RestoreParams
from console.operations.restores.effects import require_restorable
from console.operations.restores.new_runs import new_run, new_run_target
from console.operations.restores.origin import Origin
from console.runs import run_store
from console.runs.selectors import latest_run
from runtime.core.snapshot.manifest import Manifest


class Restore(NewRun):
    kind = OperationKind.RESTORE
    params = RestoreParams
    button = JobButton(place=5, label="Restore…", key="r")
    message = "The restore was requested."
    similar = ("restore", "restart", "start")

    def conflict(self, state: JobState) -> Conflict | None:
        return state.restore_conflict()

    def accept(self, row: Operation, params: RestoreParams, manifest: Manifest | None = None) -> Operation:
        """As `OperationType.accept`. `manifest`: that of the checkpoint, if the caller has read it."""
        lock_job(row.job)  # the checkpoint must not be discarded meanwhile
        if row.part_of is not None:
            require_latest(latest_run(row.job), row.part_of.run_id)
        version, parallelism = new_run_target(row.job, params)
        require_startable(row.job)
        origin = Origin.from_params(row.job, params, manifest)
        is_own = row.part_of is not None and row.part_of.kind == OperationKind.RESCALE
        ends = latest_run(row.job) if row.part_of is not None and not is_own else None
        require_restorable(row.job, origin, version, parallelism, params, is_own_savepoint=is_own, ends=ends)
        if origin.path:
            run_store.reserve_ids_above(row.job, origin.manifest.checkpoint, origin.manifest.token)
        return new_run(
            row, version, parallelism, restore_checkpoint=origin.checkpoint, restore_path=origin.path,
            allow_unmapped=params.allow_unmapped,
        )  # fmt: skip
