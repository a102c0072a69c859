"""Daemon from which Spark forks the Python workers of a stage or of BATCH, with the package of the job on their path.

Spark starts it as `python -m` once per executor (`spark.python.daemon.module`). A fork must inherit no thread, and the
library of object stores starts threads. Another process therefore unpacks the package.
"""

import os
import subprocess
import sys

from runtime.access.job_package import PACKAGE_VARIABLE, JobPackage, import_from
from runtime.io.package_cache import import_package, unpacked


def main() -> None:
    package = JobPackage(os.environ[PACKAGE_VARIABLE], os.environ["WEIR_STORAGE"])
    # The name of the cached folder is printed only; what the module prints before it is the daemon's own protocol.
    subprocess.run([sys.executable, "-m", "runtime.launch.package_daemon", "unpack"], check=True, stdout=sys.stderr)
    import_from(unpacked(package), package)
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    if sys.argv[1:] == ["unpack"]:
        import_package(os.environ)
    else:
        main()
