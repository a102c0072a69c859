"""The Celery application, and what its pool processes must learn about their parent: it is ending, or it is gone.

At SIGTERM the worker waits for its tasks to end, but only its main process is told. A run's supervisor is a task that
does not end by itself, so it looks at a byte of memory that main process and pool share since the fork. A byte, not a
lock: a pool process that is killed while it holds a lock would make the shutdown hang. A main process that was killed
tells nobody; its pool processes then have another parent.
"""

import logging.config
import mmap
import os
from typing import Any

from celery import Celery
from celery.signals import setup_logging, worker_process_init, worker_shutting_down
from django.conf import settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")

app = Celery("console")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()

_shutting_down = mmap.mmap(-1, 1)
_main_pid: int | None = None  #: of the worker that forked this pool process


def shutting_down() -> bool:
    """Whether the worker that this process belongs to was asked to end."""
    return _shutting_down[0] == 1


def orphaned() -> bool:
    """Whether the worker that this process belongs to was killed."""
    return _main_pid is not None and os.getppid() != _main_pid


@worker_shutting_down.connect
def _remember_shutdown(**_: Any) -> None:
    _shutting_down[0] = 1


@worker_process_init.connect
def _remember_parent(**_: Any) -> None:
    global _main_pid  # noqa: PLW0603
    _main_pid = os.getppid()


@setup_logging.connect
def _use_django_logging(**_: Any) -> None:
    logging.config.dictConfig(settings.LOGGING)
