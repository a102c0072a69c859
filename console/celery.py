"""The Celery application, and the one thing that its pool processes must learn from their parent: it is ending.

At SIGTERM the worker waits for its tasks to end, but only its main process is told. A run's supervisor is a task that
does not end by itself, so it looks at a byte of memory that main process and pool share since the fork. A byte, not a
lock: a pool process that is killed while it holds a lock would make the shutdown hang. Nobody needs to be told of a
main process that is killed: the kernel kills its pool with it.
"""

import logging.config
import mmap
import os
from typing import Any

from celery import Celery
from celery.signals import setup_logging, worker_shutting_down
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")

app = Celery("console")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

_shutting_down = mmap.mmap(-1, 1)


def shutting_down() -> bool:
    """Whether the worker that this process belongs to was asked to end."""
    return _shutting_down[0] == 1


@worker_shutting_down.connect
def _remember_shutdown(**_: Any) -> None:
    _shutting_down[0] = 1


@setup_logging.connect
def _use_django_logging(**_: Any) -> None:
    logging.config.dictConfig(settings.LOGGING)
