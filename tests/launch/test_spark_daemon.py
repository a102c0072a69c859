"""The process that Python workers are forked from: nothing in it may hold a lock when it forks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.launch.spark_daemon import remove_archives

#: What it is like once everything is imported, as Spark starts it: with one thread for numeric libraries.
LOOK = """
import sys, threading
from pathlib import Path
import runtime.launch.spark_daemon as daemon
daemon.prepare_forks()
print(threading.active_count(), "pyarrow.flight" in sys.modules, "grpc" in Path("/proc/self/maps").read_text())
print(*(path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")))
"""

#: Two forks, each with a random number.
FORKS = """
import os
import numpy as np
import runtime.launch.spark_daemon as daemon
daemon.prepare_forks()
for _ in range(2):
    if not os.fork():
        print(np.random.random(), flush=True)
        os._exit(0)
    os.wait()
"""


def test_nothing_is_imported_that_starts_threads() -> None:
    """Those of jemalloc see to a fork themselves."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.run([sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True, check=True)
    first, threads = process.stdout.splitlines()
    assert first == "1 False False"
    assert [name for name in threads.split() if not name.startswith("jemalloc")] == ["python"]


def test_forks_draw_different_random_numbers() -> None:
    process = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    first, second = process.stdout.split()
    assert first != second


@pytest.mark.parametrize("is_listed", [True, False])
@pytest.mark.parametrize("is_package", [True, False])
def test_archives_leave_the_path_if_it_has_their_folder(tmp_path: Path, is_package: bool, is_listed: bool) -> None:
    """Else the archive is the only PySpark that has the version of the executor."""
    home = tmp_path / "pyspark"
    home.mkdir()
    if is_package:
        (home / "__init__.py").touch()
    archives = [str(home / "python/lib" / name) for name in ("pyspark.zip", "py4j-0.10.9.9-src.zip")]
    folders = ["", str(home / "jars/spark-core.jar"), *([str(tmp_path)] if is_listed else [])]
    path = [*archives, *folders]
    remove_archives(path)
    assert path == (folders if is_package and is_listed else [*archives, *folders])
