"""How many rows Structured Streaming gets per batch: about a second's, as a checkpoint each second means for it."""

from benchmarks.systems.spark import rows_per_batch
from benchmarks.workloads import WORKLOADS


def test_windows_that_overlap_have_smaller_batches() -> None:
    """In the small run, whose rows lie 100 microseconds apart, a batch is two event seconds."""
    sizes = {
        name: (rows_per_batch(WORKLOADS[name].task("spark", ""), "check"), rows_per_batch(task, "measure"))
        for name in ("W1", "W4-10", "W4-60")
        for task in [WORKLOADS[name].task("spark", "")]
    }
    assert sizes == {
        "W1": (2_000_000, 2_000_000),
        "W4-10": (20_000, 400_000),
        "W4-60": (20_000, 66_666),
    }


def test_every_measured_run_has_batches_enough_to_leave_the_first_one_out() -> None:
    for workload in WORKLOADS.values():
        if "spark" in workload.rows and workload.files is None:
            task = workload.task("spark", "", share=0.4)
            assert task.rows >= 2 * rows_per_batch(task, "measure"), workload.name
