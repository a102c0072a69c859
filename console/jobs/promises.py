"""What a version promises from end to end, read from its settings and its compiled graph."""

from console.jobs.models import JobVersion
from runtime.core.checkpoint import CheckpointMode
from runtime.core.graph import Guarantee, Role
from runtime.core.guarantee import End, Promise, promise


def promise_of(version: JobVersion) -> Promise | None:
    """None while it is not known: the version is not compiled, or was compiled before its ends declared anything."""
    operators = (version.graph or {}).get("operators", [])
    if not operators or any("guarantee" not in operator for operator in operators):
        return None
    mode = CheckpointMode(version.settings.get("checkpoint_mode", CheckpointMode.EXACTLY_ONCE))
    return promise(
        mode,
        [
            End(operator["name"], Role(operator["role"]), Guarantee(operator["guarantee"]))
            for operator in operators
            if operator["role"] != Role.OPERATOR
        ],
    )
