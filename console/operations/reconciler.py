"""The reconciler: a pass over lost leases, lost wake-ups, and operations and checkpoints left open."""

import structlog

from console.checkpoints import services as checkpoints
from console.checkpoints import state_queries
from console.jobs import leases, standing
from console.operations import discard, settlement

log = structlog.get_logger(__name__)


def reconcile() -> None:
    leases.observe()
    for run_id in leases.release_lost():
        log.warning("lease lost, run given back", run=run_id)
    for stage_id in leases.release_lost_stages():
        log.warning("lease lost, standing stage given back", stage=stage_id)
    standing.settle()
    leases.wake_waiting()
    settlement.settle_new_runs()
    settlement.settle_orphans()
    discard.remove_files()
    checkpoints.give_up_orphans()
    state_queries.reconcile()
