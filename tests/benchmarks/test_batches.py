"""How many rows Structured Streaming gets per batch: about a second's, as a checkpoint each second means for it."""

from benchmarks.systems.spark import ROWS_PER_BATCH
from benchmarks.workloads import WORKLOADS


def test_every_measured_run_has_batches_enough_to_leave_the_first_one_out() -> None:
    for workload in WORKLOADS.values():
        if "spark" in workload.rows and workload.files is None:
            task = workload.task("spark", "", share=0.4)
            assert task.rows >= 2 * ROWS_PER_BATCH, workload.name
