"""Random worlds: every interleaving and fault must end in exactly the oracle's output."""

import re

import pytest

from runtime.simulation.__main__ import main
from runtime.simulation.simulation import simulate

SEEDS, BLOCK = 4, 2  # `make simulate` tries these and more


@pytest.mark.parametrize("start", range(0, SEEDS, BLOCK))
def test_random_worlds_keep_every_law(start: int) -> None:
    """S0-11, S0-21, S0-25, S0-31, S0-68, S0-86, S1-40, S3-19, S3-40, S4-01, S4-14, S4-15, S4-18, S4-52.

    Random jobs, faults, stops, drains, cancels and rescales.
    """
    for seed in range(start, start + BLOCK):
        simulate(seed)


def test_a_seed_always_gives_the_same_world() -> None:
    first, again = simulate(7), simulate(7)
    assert list(map(str, first.world.journal)) == list(map(str, again.world.journal))


def test_the_command_line_says_how_many_seeds_were_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--start", "11", "--processes", "1"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    figures = re.fullmatch(r"2 seeds, 0 violations; ([\d,]+) simulated hours and ([\d,]+) faults per hour of .*", said)
    assert figures is not None
    assert all(int(figure.replace(",", "")) > 0 for figure in figures.groups())
    assert main(["--replay", "11"]) == 0
    assert "seed 11:" in capsys.readouterr().out
