"""Slices of the long suite."""

import pytest

from tests.slices import files_of_slice, parse_slice


def test_each_file_is_in_one_slice_and_slices_are_about_equal() -> None:
    weights = {f"test_{number}.py": 1 + number % 7 * 30 for number in range(40)}
    slices = [files_of_slice(weights, number, 5) for number in range(5)]
    assert sorted(file for files in slices for file in files) == sorted(weights)
    seconds = [sum(weights[file] for file in files) for files in slices]
    assert max(seconds) - min(seconds) <= max(weights.values())


@pytest.mark.parametrize("text", ["", "3", "3/3", "a/2", "-1/2", "1/0"])
def test_a_slice_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="K/N"):
        parse_slice(text)
