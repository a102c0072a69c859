"""Where the jobs of a test run: slots as threads, and slots as processes of two Spark executors."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.plan import CompiledJob
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.spark import SparkLauncher
from runtime.master.launcher import Launcher
from tests.jobs import live
from tests.small_states import DEPLOYMENT_OF_SLOTS, small_deployment
from tests.spark import spark_cluster


@dataclass(frozen=True)
class Jobs:
    """Runs jobs as `tests.jobs.live` does, on the launcher of this test."""

    launcher: Launcher | None  #: None: threads, anew for each job
    settings: CoordinatorSettings = live.FAST

    def running(
        self, job: CompiledJob, storage: Path, records: MemoryRunStore | None = None, **options: Any
    ) -> AbstractContextManager[live.Run]:
        return live.running(job, storage, records, **{"settings": self.settings, "launcher": self.launcher} | options)

    def run_to_end(
        self, job: CompiledJob, storage: Path, records: MemoryRunStore | None = None, **options: Any
    ) -> MemoryRunStore:
        """A job that ends by itself."""
        return live.run_to_end(
            job, storage, records, **{"settings": self.settings, "launcher": self.launcher} | options
        )


@pytest.fixture
def default_states() -> None:
    """For a test that needs the policy of production for the files of state."""


@pytest.fixture(autouse=True)
def small_states(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots that are threads merge the files of state all the time; those on Spark do by `tests.spark`."""
    if "default_states" not in request.fixturenames:
        monkeypatch.setattr(DEPLOYMENT_OF_SLOTS, small_deployment)


@pytest.fixture(scope="package")
def spark_launcher() -> Iterator[SparkLauncher]:
    """Of all modules that a worker runs in a row: a cluster takes longer to start than most jobs."""
    with spark_cluster("tests") as launcher:
        yield launcher


ON_SPARK = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=["threads", pytest.param("spark", marks=ON_SPARK)])
def jobs(request: pytest.FixtureRequest) -> Jobs:
    """A test that takes it runs on both. What its functions share with the test is a `tests.shared.Shared`."""
    if request.param == "spark":
        return Jobs(request.getfixturevalue("spark_launcher"), CoordinatorSettings(interval_ms=200, min_pause_ms=50))
    return Jobs(None)
