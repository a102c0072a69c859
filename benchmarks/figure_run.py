"""The process of a measurement of figures: `python -m benchmarks.figure_run '["W8", FOLDER, ROUNDS]'`."""

import json
import sys
from pathlib import Path

from benchmarks import protocol
from benchmarks.figures import Plan, measurement


def main() -> None:
    name, folder, rounds = json.loads(sys.argv[1])
    protocol.started()
    plan = Plan(
        folder=Path(folder),
        rounds=rounds,
        step=protocol.stepped,
        tell=lambda report: protocol.told(report.to_json()),
    )
    protocol.reported(measurement(name).run(plan).to_json())


if __name__ == "__main__":
    main()
