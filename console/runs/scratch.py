"""Scratch folder for the Spark of a job master or standing stage, deleted once the process has exited.

Spark deletes its folders in a shutdown hook, which a killed JVM never runs. Every killed master would therefore leave
its folders below `SPARK_LOCAL_DIRS`. If that variable lists several disks, Weir leaves the folders to Spark.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_folder(holder: str, token: int) -> Iterator[dict[str, str]]:
    """Environment variables to add for the process with `token`; `holder` is, for example, `run-7`.

    Also deletes folders that earlier processes of the holder left on this machine.
    """
    root = os.environ.get("SPARK_LOCAL_DIRS", "")
    if not root or "," in root:
        yield {}
        return
    for old in Path(root).glob(f"{holder}-*"):
        shutil.rmtree(old, ignore_errors=True)
    folder = Path(root) / f"{holder}-{token}"  # Spark creates it
    try:
        yield {"SPARK_LOCAL_DIRS": str(folder)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
