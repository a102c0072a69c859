"""Daemon from which Spark forks its Python workers, with the imports of every slot already loaded.

Spark starts it as `python -m` once per executor (`spark.python.daemon.module`). The start of a slot, and the
replacement of a dead slot, cost a fork instead of a second of imports. Modules imported here must start no thread, or a
fork could inherit a locked lock: gRPC, and with it Flight, stay outside.
"""

import gc
import os
import sys
from contextlib import suppress
from pathlib import Path


def remove_archives(path: list[str]) -> None:
    """Removes the archives of PySpark from `path` if it has the same installation as a folder too.

    Spark puts `$SPARK_HOME/python/lib/*.zip` first. Python stores no bytecode for an archive, so each executor would
    compile PySpark again. Where pip has installed Spark, `$SPARK_HOME` is the package itself.
    """
    for archive in [Path(entry) for entry in path if entry.endswith("/python/lib/pyspark.zip")]:
        home = archive.parents[2]
        if str(home.parent) in path and (home / "__init__.py").exists():
            path[:] = [entry for entry in path if Path(entry).parent != archive.parent]


def prepare_forks() -> None:
    """Completes what forks inherit. PySpark is imported only here, after `remove_archives`."""
    import numpy as np
    import pandas as pd  # type: ignore[import-untyped]  # noqa: F401  # pyarrow imports it with its first conversion
    import pyspark.worker  # noqa: F401

    import runtime.connectors.formats
    import runtime.launch.member
    import runtime.slot.slot  # noqa: F401
    from runtime.errors import EnvironmentFailure
    from runtime.kernels.loading import native
    from runtime.libraries import installed_versions
    from runtime.slot import process_tuning

    installed_versions()  # each slot compares them
    process_tuning.keep_freed_memory()
    process_tuning.shorten_switch_interval()
    with suppress(EnvironmentFailure):  # the slot reports it
        native()  # numba starts no thread; a fork inherits the compiled kernels
    gc.freeze()  # a collection in a fork would copy all pages
    os.register_at_fork(after_in_child=np.random.seed)  # pandas loads the generator: slots would draw equal numbers


def main() -> None:
    remove_archives(sys.path)
    prepare_forks()
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
