"""Writes the golden savepoint of the present format: `python -m tests.golden.make`. It replaces none that is there."""

import shutil
import sys
import tempfile
from pathlib import Path

from runtime.connectors.sinks.print import PrintSink
from runtime.core.job.settings import CoordinatorSettings
from runtime.core.snapshot.manifest import FORMAT_VERSION
from tests.golden.job import HALF, SPLITS, Steps, Tally, job
from tests.jobs.live import running

FOLDER = Path(__file__).parent


def make(target: Path) -> None:
    flow = job(Steps(HALF, SPLITS, bounded=False), Tally(), PrintSink(), PrintSink())
    with tempfile.TemporaryDirectory() as storage:
        with running(flow.compile(2), Path(storage), settings=CoordinatorSettings(interval_ms=100)) as run:
            run.wait_for(lambda: run.operator("counted").get("records_in", 0) >= HALF * SPLITS)
            run.wait_for(lambda: run.operator("rules").get("state") == "finished")
            savepoint = run.end("stop")
        shutil.copytree(Path(storage) / savepoint, target)


def main() -> int:
    target = FOLDER / f"format-{FORMAT_VERSION}"
    if target.exists():
        sys.stderr.write(f"{target} is there; a golden savepoint is never written again\n")
        return 1
    make(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
