"""Bytewax: two processes with a worker each, recovery on, epochs of a second.

As its manual advises, this program starts `python -m bytewax.run` on `benchmarks.systems.bytewax_flow` per process.
"""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import protocol
from benchmarks.protocol import Task

FLOW = "benchmarks.systems.bytewax_flow:flow"


def run(task: Task, phase: str, rows: int) -> float:
    """Runs the flow to its end. Returns the seconds from the first source partition to the exit of the last process."""
    recovery = task.checkpoints(phase)
    recovery.mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "bytewax.recovery", str(recovery), str(task.parallelism)], check=True)
    addresses = ";".join(f"127.0.0.1:{port}" for port in _free_ports(task.parallelism))
    began = Path(task.folder) / f"began-{phase}"
    settings = {"BENCH_TASK": task.to_json(), "BENCH_ROWS": str(rows), "BENCH_PHASE": phase, "BENCH_BEGAN": str(began)}
    options = ["-r", str(recovery), "-s", str(task.interval_ms // 1000), "-b", "0", "-a", addresses]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "bytewax.run", FLOW, *options, "-i", str(index)],
            env={**os.environ, **settings},
            stdout=sys.stderr,
        )
        for index in range(task.parallelism)
    ]
    codes = [process.wait() for process in processes]
    ended = time.time()
    if any(codes):
        raise SystemExit(f"a Bytewax process ended with {codes}")
    return ended - min(float(path.read_text()) for path in began.parent.glob(f"{began.name}-*"))


def _free_ports(count: int) -> list[int]:
    """Ports that are currently free."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def main() -> None:
    task = protocol.read_task()
    run(task, "check", task.check_rows)
    columns = {"key": "bigint", "total": "bigint"}
    protocol.send_checked(rows=task.check_rows, format="csv", columns=columns, pattern="*.csv")
    protocol.send_started()
    protocol.send_measured(rows=task.rows, seconds=run(task, "measure", task.rows))


if __name__ == "__main__":
    main()
