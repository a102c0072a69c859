"""Owner names and lease renewal for supervisors."""

import os
import socket
import uuid

import structlog

from console.runs import run_store
from console.runs.db_retry import CONNECTION_ERRORS, close_failed_connection

log = structlog.get_logger(__name__)


def new_lease_owner() -> str:
    """A unique owner name that starts with host and pid, for human readers."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


def renew_lease(run_id: int, owner: str) -> bool:
    """Renew the lease. False only if Postgres reports that the lease has another owner; an outage counts as success."""
    try:
        return run_store.renew(run_id, owner)
    except CONNECTION_ERRORS as error:
        log.warning("lease not renewed, postgres is away", error=str(error).strip())
        close_failed_connection()
        return True
