"""The Celery application, its pool of threads, and a flag that tells tasks of the shutdown of their worker.

At SIGTERM the worker waits for its tasks. A run's supervisor is a task that ends only on request, so it polls the flag.
Tasks have no time limits: code of authors runs in child processes, which their tasks kill.
"""

import logging.config
import os
import threading
from typing import Any

from celery import Celery
from celery.concurrency.thread import TaskPool
from celery.signals import setup_logging, task_postrun, task_prerun, worker_shutting_down
from django.conf import settings
from django.db import close_old_connections
from kombu.asynchronous import get_event_loop

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
# `manage.py migrate`, which runs before any worker, has checked the project. The checks load every page and cost a
# worker a second of its start and 20 MB.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

app = Celery("console")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["console"])

# A thread keeps its connection to Postgres. Django closes one that is broken or too old around each request; here it
# does so around each task.
task_prerun.connect(close_old_connections)
task_postrun.connect(close_old_connections)

_shutting_down = threading.Event()


class ThreadPool(TaskPool):
    """Celery's pool of threads, which wakes the event loop of the worker at the end of a task.

    A worker takes messages while it has a free place. Without a wake-up the loop would notice a free place at its next
    timer only, up to 2 s later.
    """

    def on_apply(self, *args: Any, **options: Any) -> Any:
        applied = super().on_apply(*args, **options)
        applied.f.add_done_callback(_wake_loop)
        return applied


def _wake_loop(_: Any) -> None:
    if (loop := get_event_loop()) is not None:
        loop.call_soon(lambda: None)


def is_shutting_down() -> bool:
    """Whether the worker of this process was asked to shut down."""
    return _shutting_down.is_set()


@worker_shutting_down.connect
def _on_worker_shutting_down(**_: Any) -> None:
    _shutting_down.set()


@setup_logging.connect
def _on_setup_logging(**_: Any) -> None:
    logging.config.dictConfig(settings.LOGGING)
