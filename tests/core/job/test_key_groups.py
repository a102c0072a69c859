"""Key groups: exhaustive over small numbers."""

import pytest

from runtime.core.job.key_groups import (
    MAX_KEY_GROUPS,
    default_max_parallelism,
    key_group_of,
    key_group_owner,
    key_group_range,
)

SMALL = [(most, parallelism) for most in range(1, 17) for parallelism in range(1, most + 1)]


@pytest.mark.parametrize(("most", "parallelism"), SMALL)
def test_ranges_partition_the_groups_and_owner_inverts_range(most: int, parallelism: int) -> None:
    """S3-22, S3-24."""
    owned = [group for index in range(parallelism) for group in key_group_range(index, most, parallelism)]
    assert owned == list(range(most))
    for index in range(parallelism):
        assert all(
            key_group_owner(group, most, parallelism) == index for group in key_group_range(index, most, parallelism)
        )


@pytest.mark.parametrize(("most", "parallelism"), SMALL)
def test_no_subtask_is_left_without_a_group(most: int, parallelism: int) -> None:
    sizes = [len(key_group_range(index, most, parallelism)) for index in range(parallelism)]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("parallelism", "groups"),
    [
        (1, 128),
        (85, 128),
        (86, 256),
        (128, 256),
        (170, 256),
        (171, 256),
        (172, 512),
        (21_845, 32_768),
        (30_000, 32_768),
    ],
)
def test_the_default_number_of_key_groups_derives_from_the_parallelism(parallelism: int, groups: int) -> None:
    """S3-11: as Flink computes it, so 128 for up to 85 subtasks."""
    assert default_max_parallelism(parallelism) == groups


def test_a_key_stays_in_its_group_whatever_the_parallelism() -> None:
    assert key_group_of(2**64 - 1, 128) == (2**64 - 1) % 128


@pytest.mark.parametrize(
    "call",
    [
        lambda: key_group_of(1, 0),
        lambda: key_group_of(1, MAX_KEY_GROUPS + 1),
        lambda: key_group_of(-1, 8),
        lambda: key_group_owner(0, 8, 9),
        lambda: key_group_owner(8, 8, 2),
        lambda: key_group_range(0, 8, 0),
        lambda: key_group_range(2, 8, 2),
    ],
)
def test_values_outside_the_domain_are_a_broken_promise(call: object) -> None:
    assert callable(call)
    with pytest.raises(AssertionError):
        call()
