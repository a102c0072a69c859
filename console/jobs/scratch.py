"""The scratch folder of a job master's Spark, one for each attempt, deleted when its master is gone.

Spark deletes its folders in a shutdown hook. A JVM that was killed never ran it, so each killed master left its folders
below `SPARK_LOCAL_DIRS`. Several scratch disks, named in a list, are left to Spark.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_folder(run_id: int, token: int) -> Iterator[dict[str, str]]:
    """What to add to the environment of a master. Also deletes what older attempts of the run left on this machine."""
    root = os.environ.get("SPARK_LOCAL_DIRS", "")
    if not root or "," in root:
        yield {}
        return
    for old in Path(root).glob(f"run-{run_id}-*"):
        shutil.rmtree(old, ignore_errors=True)
    folder = Path(root) / f"run-{run_id}-{token}"  # Spark makes it
    try:
        yield {"SPARK_LOCAL_DIRS": str(folder)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
