"""The processes that make up Weir, as values: servers, one-time preparations, web, workers, beat, history server."""

from __future__ import annotations

import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from stack.settings import ROOT
from stack.supervisor import ProcessSpec

DEFAULT_RUNS: Final = 4  #: default of WEIR_RUNS
DEFAULT_STANDING_STAGES: Final = 4  #: default of WEIR_STANDING_STAGES


def _python(name: str, environment: Mapping[str, str], *argv: str, **settings: Any) -> ProcessSpec:
    """A process of this Python. `settings`: further fields of `ProcessSpec`."""
    return ProcessSpec(name=name, argv=[sys.executable, *argv], environment=environment, folder=ROOT, **settings)


def _django(name: str, environment: Mapping[str, str], *argv: str) -> ProcessSpec:
    """A management command. A wheel has no manage.py."""
    return _python(name, environment, "-m", "django", *argv)


def _weir(name: str, environment: Mapping[str, str], *argv: str, **settings: Any) -> ProcessSpec:
    """A command of `weir`, which replaces itself by the server."""
    return _python(name, environment, "-m", "weir.control", *argv, **settings)


def preparations(environment: Mapping[str, str]) -> list[ProcessSpec]:
    """Processes to run sequentially, each to its end, before web and workers start."""
    return [
        _django("migrate", environment, "migrate", "--noinput"),
        _django("operator", environment, "ensure_operator"),
        _django("pipelines", environment, "sync_pipelines"),
    ]


def web(environment: Mapping[str, str], listener: int, url: str) -> ProcessSpec:
    """The web server. The supervisor holds the listening socket, so that a restart cannot lose the port."""
    return _weir(
        "web", environment, "web", "--fd", str(listener),
        pass_fds=(listener,), is_ready=lambda: answers(f"{url}livez"),
    )  # fmt: skip


def workers(environment: Mapping[str, str]) -> list[ProcessSpec]:
    """The Celery workers. If the supervisor dies, the kernel kills them: at other signals they wait for their tasks.

    Standing stages last as long as their runs. They have a separate queue, so that they never block a compilation.
    Two workers share the runs, so that the loss of a worker ends the supervision of half of them only.
    """
    runs = _limit(environment, "WEIR_RUNS", DEFAULT_RUNS)
    planned = (  # name, queue, concurrency, grace period in seconds: long for suspending runs and steps
        ("housekeeping", "housekeeping", 1, 5.0),
        ("stages", "stages", 2, 5.0),
        ("standing", "standing", _limit(environment, "WEIR_STANDING_STAGES", DEFAULT_STANDING_STAGES), 20.0),
        ("runs-1", "runs", runs - runs // 2, 25.0),
        ("runs-2", "runs", runs // 2, 25.0),
    )
    return [
        _weir(
            name, environment, "worker", queue, "--concurrency", str(concurrency), "--name", name,
            grace_s=grace_s, orphan_signal=signal.SIGKILL,
        )
        for name, queue, concurrency, grace_s in planned if concurrency
    ]  # fmt: skip


def _limit(environment: Mapping[str, str], name: str, default: int) -> int:
    """The number in a variable; the default if it is empty or 0. The migrations, which run first, refuse others."""
    return int(environment.get(name) or 0) or default


def beat(environment: Mapping[str, str]) -> ProcessSpec:
    return _weir("beat", environment, "beat", grace_s=5.0)


def history(environment: Mapping[str, str]) -> list[ProcessSpec]:
    """Spark's history server, which shows the Spark UI of finished runs, if WEIR_SPARK_HISTORY_PORT is set."""
    port = environment.get("WEIR_SPARK_HISTORY_PORT")
    if not port:
        return []
    log = Path(environment["WEIR_SPARK_EVENT_LOG"])
    log.mkdir(mode=0o700, parents=True, exist_ok=True)
    options = f"-Dspark.history.fs.logDirectory={log.resolve().as_uri()} -Dspark.history.ui.port={port}"
    spark = Path(str(find_spec("pyspark").submodule_search_locations[0]))  # type: ignore[union-attr, index]
    return [
        ProcessSpec(
            name="history",
            argv=[str(spark / "bin/spark-class"), "org.apache.spark.deploy.history.HistoryServer"],
            environment={
                **environment,
                "SPARK_HISTORY_OPTS": options,
                "SPARK_DAEMON_MEMORY": "512m",
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            folder=ROOT,
            is_ready=lambda: answers(f"http://127.0.0.1:{port}/"),
        )
    ]


def answers(url: str) -> bool:
    """Whether the address answers 200 within a second."""
    try:
        with urllib.request.urlopen(url, timeout=1) as response:  # noqa: S310 - a local http address
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
