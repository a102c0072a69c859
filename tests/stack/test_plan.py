"""The processes of `make up`: how many runs and standing stages their workers take at a time."""

from __future__ import annotations

import pytest

from stack.plan import workers


def concurrency(**environment: str) -> dict[str, str]:
    return {spec.name: spec.argv[spec.argv.index("--concurrency") + 1] for spec in workers(environment)}


def test_the_defaults_are_four_runs_on_two_workers_and_four_standing_stages() -> None:
    defaults = {"housekeeping": "1", "stages": "2", "standing": "4", "runs-1": "2", "runs-2": "2"}
    assert concurrency() == defaults
    assert concurrency(WEIR_RUNS="0", WEIR_STANDING_STAGES="") == defaults, "the console reads them so too"


@pytest.mark.parametrize(("runs", "expected"), [("1", ["1"]), ("2", ["1", "1"]), ("7", ["4", "3"])])
def test_weir_runs_is_the_number_of_runs_at_a_time(runs: str, expected: list[str]) -> None:
    """A single run needs a single worker: Celery takes a concurrency of 0 for the number of cores."""
    concurrencies = concurrency(WEIR_RUNS=runs)
    assert [value for name, value in concurrencies.items() if name.startswith("runs-")] == expected


def test_standing_stages_have_a_limit_of_their_own() -> None:
    assert concurrency(WEIR_STANDING_STAGES="9")["standing"] == "9"
