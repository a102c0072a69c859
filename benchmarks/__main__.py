"""Runs the benchmark: `python -m benchmarks [--quick] [--only W1,W8] [--repeats 3] [--rounds 10]`.

Workloads whose result is a rate run first, then the measurements of figures (`figures.py`). Within a workload the
systems take turns, so that other load on the machine affects all of them alike. The first, small run of each process
is checked against the answer and warms the process up; only the second run counts.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from typing import Final

from benchmarks import figures, goals
from benchmarks.child import BENCH, find_java
from benchmarks.harness import RunPlan, lock_folder, run
from benchmarks.systems import SYSTEMS
from benchmarks.workloads import QUICK, WORKLOADS

REPEATS: Final = 3
TIME_BOX_S: Final = 300.0
QUICK_TIME_BOX_S: Final = 75.0
QUICK_SHARE: Final = 0.4
ALL_GOALS: Final = "goals"  #: in `--only`, the workloads and measurements of all goals


def _select_names(text: str | None, choices: Sequence[str], default: Sequence[str]) -> list[str]:
    names = list(default) if text is None else text.split(",")
    if ALL_GOALS in names:
        names = goals.workloads_and_measurements()
    unknown = [name for name in names if name not in choices]
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}; known: {', '.join(choices)}, {ALL_GOALS}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description="Weir and its peers, measured side by side.")
    parser.add_argument("--quick", action="store_true", help=f"run {', '.join(QUICK)} once each, with fewer rows")
    parser.add_argument("--only", help="comma-separated workloads, for example W1,W8, or goals (default: all)")
    parser.add_argument("--systems", help="comma-separated systems (default: all)")
    parser.add_argument("--repeats", type=int, default=None, help="runs per system of a workload")
    parser.add_argument("--rounds", type=int, default=None, help="rounds per measurement of figures (default: its own)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the exit unwinds and ends the child
    every = [*WORKLOADS, *figures.MEASUREMENT_MODULES]
    names = _select_names(options.only, every, QUICK if options.quick else every)
    systems = _select_names(options.systems, list(SYSTEMS), list(SYSTEMS))
    plan = RunPlan(
        repeats=options.repeats or (1 if options.quick else REPEATS),
        time_box_s=QUICK_TIME_BOX_S if options.quick else TIME_BOX_S,
        share=QUICK_SHARE if options.quick else 1.0,
        rounds=options.rounds,
    )
    try:
        with lock_folder(BENCH):
            find_java()
            return 0 if run(BENCH, names, systems, plan) else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
