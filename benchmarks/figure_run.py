"""The process in which one measurement of figures runs: `python -m benchmarks.figure_run '["W8", FOLDER, ROUNDS]'`."""

import json
import sys
from pathlib import Path

from benchmarks import protocol
from benchmarks.figures import Plan, measurement


def main() -> None:
    name, folder, rounds = json.loads(sys.argv[1])
    protocol.started()
    report = measurement(name).run(Plan(folder=Path(folder), rounds=rounds, step=protocol.stepped))
    protocol.reported(report.to_json())


if __name__ == "__main__":
    main()
