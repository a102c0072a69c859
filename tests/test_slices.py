"""Slices of the long suite."""

import pytest

from tests.slices import COMPOSITION, ROOT, files_of_slice, parse_slice


def test_each_file_is_in_one_slice_and_slices_are_about_equal() -> None:
    weights = {f"test_{number}.py": 1 + number % 7 * 30 for number in range(40)}
    slices = [files_of_slice(weights, number, 5) for number in range(5)]
    assert sorted(file for files in slices for file in files) == sorted(weights)
    seconds = [sum(weights[file] for file in files) for files in slices]
    assert max(seconds) - min(seconds) <= max(weights.values())


def test_the_composition_is_a_slice_of_its_own() -> None:
    weights = {f"test_{number}.py": 60 for number in range(9)} | {COMPOSITION: 1}
    slices = [files_of_slice(weights, number, 4) for number in range(4)]
    assert slices[0] == {COMPOSITION}
    assert [len(files) for files in slices[1:]] == [3, 3, 3]
    assert files_of_slice(weights, 0, 1) == set(weights)
    assert (ROOT / COMPOSITION).is_file()


@pytest.mark.parametrize("text", ["", "3", "3/3", "a/2", "-1/2", "1/0"])
def test_a_slice_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(pytest.UsageError, match="K/N"):
        parse_slice(text)
