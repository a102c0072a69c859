"""Changes of facts about a job, and of its archive."""

from console.operations.models import OperationKind
from console.operations.operation_type import OperationType, Target


class Edit(OperationType):
    kind = OperationKind.EDIT
    target = Target.RECORD
