"""The process that Spark forks its Python workers from, with what every slot imports imported already.

Spark starts it as `python -m` once per executor (`spark.python.daemon.module`), and a slot that replaces a dead one is
there after a fork instead of after a second of imports. Whatever is imported here must start no thread, or a fork could
find a lock held for ever: gRPC, and with it Flight, stay outside.
"""

import numpy as np  # noqa: F401
import pyarrow as pa  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import runtime.dataflow
import runtime.hosts.collector
import runtime.hosts.standing
import runtime.hosts.worker
import runtime.io.filesystem  # noqa: F401
from runtime.hosts import freed

if __name__ == "__main__":
    freed.keep()
    manager()
