"""The removal of a schedule; its savepoints and the results of its drills stay."""

import msgspec

from console.accounts.refusals import Conflict
from console.jobs.services import lock_job
from console.operations.models import Operation, OperationKind, Schedule, ScheduledOperation
from console.operations.operation_type import OperationType, save_succeeded


class UnscheduleParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The schedule to remove."""

    operation: ScheduledOperation = ScheduledOperation.SAVEPOINT


class Unschedule(OperationType):
    kind = OperationKind.UNSCHEDULE
    params = UnscheduleParams
    message = "The schedule is removed. Its savepoints and the results of its drills stay."

    def accept(self, row: Operation, params: UnscheduleParams) -> Operation:
        lock_job(row.job)
        schedule = Schedule(job=row.job, operation=params.operation.value)
        if not Schedule.objects.filter(job=row.job, operation=params.operation.value).delete()[0]:
            raise Conflict("not-scheduled", f"The job has no schedule of {schedule.noun}s.")
        return save_succeeded(row, {})
