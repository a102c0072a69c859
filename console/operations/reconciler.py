"""The reconciler: a pass over lost leases, lost wake-ups, and orphaned operations and checkpoints."""

from collections.abc import Callable, Iterable
from typing import Final

import structlog

from console.checkpoints import services as checkpoints
from console.checkpoints import state_queries
from console.operations import drills, orphaned_operations, successions, waiting_starts
from console.operations.models import ACTIVE_STATES, Operation
from console.runs import lost_leases, standing_stages

log = structlog.get_logger(__name__)


def reconcile() -> None:
    """A pass. An error of a step stops no other step.

    Raises:
        ExceptionGroup: the errors of all steps that failed.
    """
    _run(_STEPS)


def _run(steps: Iterable[Callable[[], object]]) -> None:
    errors = []
    for step in steps:
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


def _advance_operations() -> None:
    """Most passes find no active operation: they make one query in place of five large ones."""
    if Operation.objects.filter(state__in=ACTIVE_STATES).exists():
        _run(_OPERATION_STEPS)


#: Each selects active operations.
_OPERATION_STEPS: Final[tuple[Callable[[], object], ...]] = (
    waiting_starts.advance_waiting_starts,
    orphaned_operations.update_start_operations,
    orphaned_operations.end_orphaned_operations,
    successions.advance_successions,
    drills.advance_drills,
)
_STEPS: Final[tuple[Callable[[], object], ...]] = (
    _release_lost_leases,
    standing_stages.end_orphaned_stages,
    lost_leases.resend_wake_ups,
    _advance_operations,
    checkpoints.fail_orphaned_checkpoints,
    state_queries.reconcile,
)
