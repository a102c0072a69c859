"""The scratch folder of the Spark of a job master or a standing stage, deleted when its process is gone.

Spark deletes its folders in a shutdown hook. A JVM that was killed never ran it, so each killed master left its folders
below `SPARK_LOCAL_DIRS`. Several scratch disks, named in a list, are left to Spark.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_folder(holder: str, token: int) -> Iterator[dict[str, str]]:
    """What to add to the environment of the process with `token`, such as an attempt of the holder `run-7`.

    Also deletes what older processes of the holder left on this machine.
    """
    root = os.environ.get("SPARK_LOCAL_DIRS", "")
    if not root or "," in root:
        yield {}
        return
    for old in Path(root).glob(f"{holder}-*"):
        shutil.rmtree(old, ignore_errors=True)
    folder = Path(root) / f"{holder}-{token}"  # Spark makes it
    try:
        yield {"SPARK_LOCAL_DIRS": str(folder)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
