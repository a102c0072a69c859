"""What PySpark users import, and where Spark finds the data source `weir-state` by its name.

Spark looks for packages called `pyspark_*` with a `DefaultSource`, and imports all of them for each lookup of any name:
so the writer, which imports the operators, is loaded when it is asked for.
"""

from typing import TYPE_CHECKING, Any

from spark_jobs.state_source import StateSource

if TYPE_CHECKING:
    from spark_jobs.savepoints import SavepointWriter, WrittenSavepoint

DefaultSource = StateSource

__all__ = ["DefaultSource", "SavepointWriter", "WrittenSavepoint"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from spark_jobs import savepoints

    return getattr(savepoints, name)
