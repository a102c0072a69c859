"""End-to-end guarantee of a version, derived from its settings and its compiled graph."""

from console.jobs.models import JobVersion
from runtime.core.job.graph import Guarantee, Role
from runtime.core.job.guarantee import CheckpointMode, ConnectorGuarantee, EndToEndGuarantee, end_to_end_guarantee


def version_guarantee(version: JobVersion) -> EndToEndGuarantee | None:
    """The guarantee; None if the version has no graph yet, or an old graph whose connectors declare no guarantees."""
    operators = (version.graph or {}).get("operators", [])
    if not operators or any("guarantee" not in operator for operator in operators):
        return None
    mode = CheckpointMode(version.settings.get("checkpoint_mode", CheckpointMode.EXACTLY_ONCE))
    return end_to_end_guarantee(
        mode,
        [
            ConnectorGuarantee(operator["name"], Role(operator["role"]), Guarantee(operator["guarantee"]))
            for operator in operators
            if operator["role"] != Role.OPERATOR
        ],
    )
