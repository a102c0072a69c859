"""How the durations and sizes of checkpoints are spread."""

from random import Random

from runtime.core.checkpoint.statistics import CheckpointMeasurement, Distribution, distribution, summarize


def test_one_value_is_all_of_its_spread() -> None:
    assert distribution([5]) == Distribution(5, 5, 5, 5, 5, 5, 5)


def test_percentiles_are_interpolated_and_do_not_depend_on_order() -> None:
    values = [float(n) for n in range(1, 102)]
    Random(3).shuffle(values)
    assert distribution(values) == Distribution(1, 51, 101, 51, 91, 96, 100)
    assert distribution([10, 20]) == Distribution(10, 15, 20, 15, 19, 19.5, 19.9)


def test_each_measure_is_summed_up_by_itself() -> None:
    """S2-53."""
    first_measurement = CheckpointMeasurement(duration_ms=300, state_bytes=1_000, written_bytes=10, alignment_ms=0)
    second_measurement = CheckpointMeasurement(duration_ms=100, state_bytes=3_000, written_bytes=20, alignment_ms=2.5)
    summary = summarize([first_measurement, second_measurement])
    assert summary is not None
    assert summary.checkpoints == 2
    assert summary.duration_ms == distribution([100, 300])
    assert summary.state_bytes == distribution([1_000, 3_000])
    assert summary.written_bytes == distribution([10, 20])
    assert summary.alignment_ms == distribution([0, 2.5])


def test_without_checkpoints_there_is_no_summary() -> None:
    assert summarize([]) is None
