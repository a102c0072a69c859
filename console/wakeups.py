"""Wake-ups: Celery messages that ask a worker to look at a row again. Losing, repeating or delaying them is harmless.

An unreachable broker must not fail a request whose row is already written: the reconciler resends the message.
"""

from functools import partial

import structlog
from django.db import transaction
from kombu.exceptions import OperationalError

from console.celery import app

log = structlog.get_logger(__name__)

#: Names of the tasks that `console.tasks` registers.
SUPERVISE_TASK = "console.tasks.supervise_run"
COMPILE_TASK = "console.tasks.compile_version"
STAGE_TASK = "console.tasks.attend_stage"
PACKAGE_TASK = "console.tasks.describe_package"
PIPELINES_TASK = "console.tasks.sync_pipelines"
STATE_QUERY_TASK = "console.tasks.answer_state_query"

#: Seconds after which a message that no worker took is dropped: the reconciler has sent newer messages since.
MESSAGE_EXPIRES_S = 300


def send(task: str, *rows: int | str) -> None:
    """Sends a wake-up, for a row if the task has rows, at once. An unreachable broker is logged and raises no error."""
    try:
        app.send_task(task, args=rows, expires=MESSAGE_EXPIRES_S, retry=False)
    except (OperationalError, OSError) as error:
        log.warning("wake-up not sent, the reconciler will", task=task, rows=rows, error=str(error))


def after_commit(task: str, row: int | str) -> None:
    """Sends a wake-up for a row after the commit of the current transaction, when workers can see the row."""
    transaction.on_commit(partial(send, task, row))
