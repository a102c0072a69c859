"""W14: the bare operators do the job's work, and gains are compared round by round."""

from pathlib import Path

import pytest

from benchmarks.figures import MeasurementPlan
from benchmarks.kernels import KEYS, DrivenSubtasks, job
from benchmarks.scaling import (
    RESIDENT_LOOPS,
    Round,
    Runs,
    RunTime,
    SlotRuns,
    bare,
    control,
    measure_round,
    report,
    steps,
)
from benchmarks.workloads.windows import totals
from runtime.launch.local import LocalLauncher

ROWS = 1_300_000


def test_the_bare_operators_give_what_the_job_gives() -> None:
    driven = DrivenSubtasks(job(ROWS).compile(1), 0)
    driven.run()
    assert driven.sink_totals() == totals(ROWS, KEYS)


def test_two_of_them_share_the_rows() -> None:
    """Each hands its own share on in place of the other's, so the rows are about right and the keys are shared out."""
    both = [DrivenSubtasks(job(3_000_000).compile(2), index) for index in range(2)]
    for driven in both:
        driven.run()
    one, other = (driven.sink_totals() for driven in both)
    assert one["sum_of_count"] + other["sum_of_count"] == pytest.approx(3_000_000, rel=0.05)
    assert one["rows_out"] == pytest.approx(3 * KEYS / 2, rel=0.05)


def test_they_run_in_processes_that_begin_together() -> None:
    took = bare(2, ROWS)
    assert took.seconds > 0
    assert took.cpu_seconds > 0


def test_the_control_runs_in_as_many_processes() -> None:
    took = control(2, 20)
    assert took.cpu_seconds > 0


def test_slots_count_right_or_say_so(tmp_path: Path) -> None:
    weir = SlotRuns(tmp_path / "storage", LocalLauncher())
    assert weir.run(2, ROWS).seconds > 0
    assert weir.wrong == []


def took(seconds: float) -> RunTime:
    return RunTime(seconds=seconds, cpu_seconds=seconds)


def test_a_round_has_each_once_and_the_next_goes_the_other_way_round(tmp_path: Path) -> None:
    def weir(parallelism: int, rows: int) -> RunTime:
        return took(2 * rows / parallelism)

    def alone(parallelism: int, rows: int) -> RunTime:
        return took(rows / parallelism)

    there: list[str] = []
    back: list[str] = []
    runs = Runs(weir, alone, alone, weir, alone)
    found = measure_round(0, 8, runs, there.append)
    assert measure_round(1, 8, runs, back.append) == found
    assert found.few_keys == {1: took(16), 2: took(8)}
    assert set(found.ads) == {1, 2}
    assert found.control == {1: took(RESIDENT_LOOPS), 2: took(RESIDENT_LOOPS / 2)}
    assert found.weir == {1: took(16), 2: took(8)}
    assert found.bare == {1: took(8), 2: took(4)}
    assert [text.split(", ", 1)[1] for text in there] == [text.split(", ", 1)[1] for text in reversed(back)]
    assert steps(MeasurementPlan(folder=tmp_path, rounds=3)) == 2 + 3 * len(there)


def test_the_gain_of_slots_is_held_against_the_gain_of_the_same_round() -> None:
    rounds = [
        Round(
            weir={1: took(18 * slow), 2: took(10 * slow)},
            bare={1: took(12), 2: took(6)},
            control={1: took(8), 2: took(5)},
            few_keys={1: took(8), 2: took(5)},
            ads={1: took(4), 2: took(4)},
        )
        for slow in (1.0, 3.0, 2.0)
    ]
    told = report(rounds, 90_000_000, ["2 slots: rows_out is 3, not 4"])
    assert [figure.value for figure in told.figures] == pytest.approx([1.8, 2.0, 0.9, 1.6, 1.125, 1.0, 0.625])
    assert [figure.is_met for figure in told.figures] == [True, None, True, None, True, True, False]
    assert told.wrong == ("2 slots: rows_out is 3, not 4",)
    assert "slots, 1: 2.5 M rec/s, 400 ns of a processor per record" in told.lines[0]
