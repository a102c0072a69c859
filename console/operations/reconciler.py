"""The reconciler: a pass over lost leases, lost wake-ups, and operations and checkpoints left open."""

import structlog

from console.checkpoints import services as checkpoints
from console.checkpoints import state_queries
from console.operations import discard, orphaned_operations
from console.runs import lost_leases, standing_stages

log = structlog.get_logger(__name__)


def reconcile() -> None:
    lost_leases.observe()
    for run_id in lost_leases.release_lost():
        log.warning("lease lost, run given back", run=run_id)
    for stage_id in lost_leases.release_lost_stages():
        log.warning("lease lost, standing stage given back", stage=stage_id)
    standing_stages.settle()
    lost_leases.wake_waiting()
    orphaned_operations.settle_new_runs()
    orphaned_operations.settle_orphans()
    discard.remove_files()
    checkpoints.give_up_orphans()
    state_queries.reconcile()
