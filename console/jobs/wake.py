"""Wake-ups: Celery messages that say "look at this row again". They may be lost, repeated or late without harm.

A broker that is away must not fail a request whose row is already written: the reconciler sends the message again.
"""

from functools import partial

import structlog
from django.db import transaction
from kombu.exceptions import OperationalError

from console.celery import app

log = structlog.get_logger(__name__)

SUPERVISE = "console.jobs.tasks.supervise_run"
COMPILE = "console.jobs.tasks.compile_version"
STAND = "console.jobs.tasks.attend_stage"
READ_STATE = "console.checkpoints.tasks.answer_state_query"

#: A message that nobody took in this time is dropped: the reconciler has sent others since.
EXPIRES_S = 300


def send(task: str, row_id: int) -> None:
    """Send now. Never raises for a broker that is away."""
    try:
        app.send_task(task, args=(row_id,), expires=EXPIRES_S, retry=False)
    except (OperationalError, OSError) as error:
        log.warning("wake-up not sent, the reconciler will", task=task, row=row_id, error=str(error))


def after_commit(task: str, row_id: int) -> None:
    """Send once the rows that the message is about can be seen."""
    transaction.on_commit(partial(send, task, row_id))
