"""Changes of facts about a job, and of its archive."""

from console.operations.models import OperationKind
from console.operations.operation_type import OperationType


class Edit(OperationType):
    kind = OperationKind.EDIT
    is_record = True
