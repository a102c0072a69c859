"""The removal of a pin."""

from console.operations.kinds.snapshot.pin import PinOperation
from console.operations.models import OperationKind


class Unpin(PinOperation):
    kind = OperationKind.UNPIN
    message = "The pin is removed."
    pins = False
