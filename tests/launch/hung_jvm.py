"""A job on `local[2]` whose JVM is stopped, and then a slot killed: `python -m tests.launch.hung_jvm FOLDER`.

It is a process of its own, since PySpark has a single JVM in a process. It prints what the master has recorded as JSON.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import psutil

from runtime.clock import SystemClock
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.io.filesystem import FileStore
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.spark import SparkLauncher
from runtime.master.config import MasterConfig
from runtime.master.job_master import JobMaster
from tests.jobs.numbers import Numbers, counts
from tests.waiting import until

PATIENCE_S = 120.0
ENDS_WITHIN_S = 60.0  #: the limits of the calls together, many times over
SLOTS = 2


def run(folder: Path) -> dict[str, Any]:
    launcher, records = SparkLauncher("hung", f"local[{SLOTS}]"), MemoryRunStore()
    config = MasterConfig(
        job_id="1",
        token=records.token,
        job=counts(Numbers(total=20_000, batch=50, unbounded=True), folder / "out").compile(SLOTS),
        storage=str(folder / "state"),
        coordinator=CoordinatorSettings(interval_ms=500, min_pause_ms=50),
        restart=FixedDelay(attempts=3, delay_ms=50),
    )
    master = JobMaster(config, records, FileStore(config.storage), launcher, SystemClock())
    exits: list[int] = []
    thread = threading.Thread(target=lambda: exits.append(int(master.run())), daemon=True)
    thread.start()
    until(lambda: bool(records.completed) and len(records.live.get("slots", ())) == SLOTS, PATIENCE_S)
    assert launcher.context is not None
    gateway: Any = launcher.context._gateway
    jvm = psutil.Process(gateway.proc.pid)
    slot = next(int(each["pid"]) for each in records.live["slots"] if each["index"] == 1)
    family = [jvm, *jvm.children(recursive=True)]
    jvm.send_signal(signal.SIGSTOP)
    os.kill(slot, signal.SIGKILL)
    try:
        thread.join(ENDS_WITHIN_S)
        if not thread.is_alive():
            launcher.close()
        return {
            "exits": exits,
            "attempts": records.attempts,
            "state": records.state,
            "alive": [each.pid for each in family if each.is_running() and each.status() != psutil.STATUS_ZOMBIE],
        }
    finally:
        for each in family:
            if each.is_running():
                each.kill()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(Path(sys.argv[1]))) + "\n")
    sys.stdout.flush()
    os._exit(0)  # PySpark's own exit would wait for a JVM that hangs
