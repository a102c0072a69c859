"""Holding a run: a name for the holder, and its lease kept fresh.

Used by whoever does something with a run for long: its supervisor.
"""

import os
import socket
import uuid

import structlog

from console.jobs import runs
from console.jobs.patience import AWAY, forget_connection

log = structlog.get_logger(__name__)


def new_owner() -> str:
    """Host and process, for people; and something that no other holder has."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


def renew(run_id: int, owner: str) -> bool:
    """False only when Postgres says that the lease is another's; an outage says nothing."""
    try:
        return runs.renew(run_id, owner)
    except AWAY as error:
        log.warning("lease not renewed, postgres is away", error=str(error).strip())
        forget_connection()
        return True
