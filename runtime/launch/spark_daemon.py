"""Daemon from which Spark forks its Python workers, with the imports of every slot already loaded.

Spark starts it as `python -m` once per executor (`spark.python.daemon.module`). The replacement of a dead slot costs a
fork instead of a second of imports. Modules imported here must start no thread, or a fork could inherit a locked lock:
gRPC, and with it Flight, stay outside.
"""

import numpy as np  # noqa: F401
import pyarrow as pa  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import runtime.dataflow.builder
import runtime.io.filesystem  # noqa: F401
from runtime.kernels.loading import native
from runtime.slot import process_tuning

if __name__ == "__main__":
    process_tuning.keep_freed_memory()
    native()  # numba starts no thread; a fork inherits the compiled kernels
    manager()
