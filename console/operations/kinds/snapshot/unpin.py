"""The removal of a pin."""

from console.operations.kinds.snapshot.pin import PinOperation
from console.operations.models import OperationKind
from console.operations.operation_type import PlainCommand


class Unpin(PinOperation):
    kind = OperationKind.UNPIN
    message = "The pin is removed."
    command = PlainCommand(help="Removes the pin of snapshot NUMBER of JOB.")
    pins = False
