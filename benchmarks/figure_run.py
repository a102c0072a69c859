"""The process of a measurement of figures: `python -m benchmarks.figure_run '["W8", FOLDER, ROUNDS]'`."""

import json
import sys
from pathlib import Path

from benchmarks import protocol
from benchmarks.figures import MeasurementPlan, measurement


def main() -> None:
    name, folder, rounds = json.loads(sys.argv[1])
    protocol.send_started()
    plan = MeasurementPlan(
        folder=Path(folder),
        rounds=rounds,
        step=protocol.send_step,
        report_partial=lambda report: protocol.send_partial_report(report.to_json()),
    )
    protocol.send_report(measurement(name).run(plan).to_json())


if __name__ == "__main__":
    main()
