"""State whose files are merged all the time, for jobs of tests. The default policy would hardly merge states so small.

Run as a module, it is the daemon of Spark's Python workers: that of production, whose slots keep such states and report
as often as those of `tests.jobs.live`.
"""

import sys
from functools import partial
from typing import Final

from runtime.launch import spark_daemon
from runtime.state.files.compaction import CompactionPolicy
from runtime.task.deployment import Deployment

SMALL_STATES: Final = CompactionPolicy(copied_bytes=0, base_bytes=0, inline_bytes=0, max_deltas=2)
DEPLOYMENT_OF_SLOTS: Final = "runtime.slot.slot.Deployment"  #: how a slot makes its tasks
HEARTBEAT_INTERVAL_S: Final = 0.1  #: tests wait for the figures of heartbeats
small_deployment: Final = partial(Deployment, compaction=SMALL_STATES)


def main() -> None:
    spark_daemon.remove_archives(sys.path)
    spark_daemon.prepare_forks()
    from pyspark.daemon import manager

    from runtime.slot import slot

    setattr(slot, "Deployment", small_deployment)  # noqa: B010  # the module exports a class of this name to itself only
    setattr(slot, "HEARTBEAT_INTERVAL_S", HEARTBEAT_INTERVAL_S)  # noqa: B010  # it is Final
    manager()


if __name__ == "__main__":
    main()
