"""What PySpark users import, and where Spark finds the data source `weir-state` by its name.

Spark looks for packages called `pyspark_*` with a `DefaultSource`.
"""

from spark_jobs.savepoints import SavepointWriter, WrittenSavepoint
from spark_jobs.state_source import StateSource

DefaultSource = StateSource

__all__ = ["DefaultSource", "SavepointWriter", "WrittenSavepoint"]
