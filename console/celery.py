"""The Celery application, and a shutdown flag that its pool processes share.

At SIGTERM the worker waits for its tasks, but only its main process gets the signal. A run's supervisor is a task that
ends only on request, so it polls a byte of memory that the main process and the pool share since the fork. A lock would
not do: a pool process killed while holding it would block the shutdown. If the main process is killed, the kernel kills
its pool with it.
"""

import logging.config
import mmap
import os
from typing import Any

from celery import Celery
from celery.signals import setup_logging, worker_shutting_down
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
# `manage.py migrate`, which runs before any worker, has checked the project. The checks load every page and cost a
# worker a second of its start and 20 MB.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

app = Celery("console")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["console"])

_shutting_down = mmap.mmap(-1, 1)


def is_shutting_down() -> bool:
    """Whether the worker of this process was asked to shut down."""
    return _shutting_down[0] == 1


@worker_shutting_down.connect
def _on_worker_shutting_down(**_: Any) -> None:
    _shutting_down[0] = 1


@setup_logging.connect
def _on_setup_logging(**_: Any) -> None:
    logging.config.dictConfig(settings.LOGGING)
