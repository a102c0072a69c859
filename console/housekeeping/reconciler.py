"""The reconciler: a pass over lost leases, lost wake-ups, and orphaned operations and checkpoints."""

from collections.abc import Callable
from typing import Final

import structlog

from console.checkpoints import services as checkpoints
from console.checkpoints import state_queries
from console.housekeeping import advance
from console.runs import lost_leases, standing_stages

log = structlog.get_logger(__name__)


def reconcile() -> None:
    """A pass. An error of a step stops no other step.

    Raises:
        ExceptionGroup: the errors of all steps that failed.
    """
    errors = []
    for step in _STEPS:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)
    if errors:
        raise ExceptionGroup("steps of the reconciler failed", errors)


def _release_lost_leases() -> None:
    lost_leases.observe_leases()
    for run_id in lost_leases.release_lost_runs():
        log.warning("lease lost, run given back", run=run_id)
    for stage_id in lost_leases.release_lost_stages():
        log.warning("lease lost, standing stage given back", stage=stage_id)


_STEPS: Final[tuple[Callable[[], object], ...]] = (
    _release_lost_leases,
    standing_stages.end_orphaned_stages,
    lost_leases.resend_wake_ups,
    advance.advance_rows,
    checkpoints.fail_orphaned_checkpoints,
    state_queries.reconcile,
)
