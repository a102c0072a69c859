"""The processes of the console: `weir web | worker QUEUE | beat`, and the stack of a single machine, `weir stack`.

A command replaces its process by the server, so that signals and limits reach the server. The stack, the image and the
composition start their processes by these commands: the flags of the servers stand here only.
"""

import os
import sys
from typing import Final

import click

from runtime.errors import JobRejected
from runtime.libraries import require_libraries

QUEUES: Final = ("housekeeping", "stages", "standing", "runs")
BEAT: Final = ("-A", "console.celery", "beat", "-l", "WARNING", "--pidfile=")  #: arguments of Celery


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=int, default=8000, show_default=True)
@click.option("--fd", type=int, help="Descriptor of a listening socket, instead of host and port.")
def web(host: str, port: int, fd: int | None) -> None:
    """Starts the web server of the console."""
    address = ("--host", host, "--port", str(port)) if fd is None else ("--fd", str(fd))
    _serve("console.server", *address)


@click.command()
@click.argument("queue", type=click.Choice(QUEUES))
@click.option("--concurrency", type=click.IntRange(1), default=1, show_default=True, help="Tasks at a time.")
@click.option("--name", help="Name of the worker on its host [the queue].")
def worker(queue: str, concurrency: int, name: str | None) -> None:
    """Starts a worker of QUEUE. Runs need a host with Spark."""
    require_libraries({"django": "console"} | ({"pyspark": "spark"} if queue in ("runs", "standing") else {}))
    _serve(
        "celery", "-A", "console.celery", "worker", "-Q", queue, "-c", str(concurrency), "-n", f"{name or queue}@%h",
        "-l", "INFO", "--without-gossip", "--without-mingle",
    )  # fmt: skip


@click.command()
def beat() -> None:
    """Starts the clock of the periodic tasks. A console has one."""
    _serve("celery", *BEAT)


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def stack(arguments: tuple[str, ...]) -> None:
    """Starts or stops the stack of this machine: `up | down | status | logs | clean`."""
    _become("stack", *arguments)


def _serve(module: str, *arguments: str) -> None:
    """Becomes a process of the console. Raises JobRejected: a variable that all of them need is missing."""
    for name in ("WEIR_VAR", "DATABASE_URL", "CELERY_BROKER_URL", "DJANGO_SECRET_KEY"):
        if not os.environ.get(name):
            advice = "on a single machine `weir stack up` sets all variables and starts all processes"
            raise JobRejected("missing-variable", name, f"is not set: {advice}")
    _become(module, *arguments)


def _become(module: str, *arguments: str) -> None:
    """Replaces this process by `python -m module`. Raises JobRejected: the console is not installed."""
    require_libraries({"django": "console"})
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606 - a list, without a shell


COMMANDS = (web, worker, beat, stack)
