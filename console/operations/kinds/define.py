"""The creation of a job, and of its versions."""

from console.operations.models import OperationKind
from console.operations.operation_type import OperationType


class Define(OperationType):
    kind = OperationKind.DEFINE
    is_record = True
