"""key hash → key group → subtask (Flink's `KeyGroupRangeAssignment`).

The number of key groups (`max_parallelism`) is fixed at a job's first run. State is partitioned by key group, so a
rescale moves whole ranges. Keys are hashed to 64 bits elsewhere (`runtime.state`).
"""

from typing import Final

MAX_KEY_GROUPS: Final = 32_768
DEFAULT_MAX_PARALLELISM: Final = 128


def default_max_parallelism(parallelism: int) -> int:
    """The number of key groups of a job that sets none: 1.5 times its parallelism, rounded up to a power of two.

    At least 128, at most 32,768. (Flink: `KeyGroupRangeAssignment.computeDefaultMaxParallelism`.)
    """
    groups = parallelism + parallelism // 2
    return min(max(1 << max(0, groups - 1).bit_length(), DEFAULT_MAX_PARALLELISM), MAX_KEY_GROUPS)


def key_group_of(key_hash: int, max_parallelism: int) -> int:
    """The key group of an unsigned 64-bit `key_hash`."""
    assert 0 < max_parallelism <= MAX_KEY_GROUPS, "max_parallelism out of range"
    assert key_hash >= 0, "key hashes are unsigned"
    return key_hash % max_parallelism


def key_group_owner(key_group: int, max_parallelism: int, parallelism: int) -> int:
    """The index of the subtask that owns `key_group`."""
    assert 0 < parallelism <= max_parallelism, "parallelism above max_parallelism"
    assert 0 <= key_group < max_parallelism, "key group out of range"
    return key_group * parallelism // max_parallelism


def key_group_range(index: int, max_parallelism: int, parallelism: int) -> range:
    """The key groups that subtask `index` owns."""
    assert 0 < parallelism <= max_parallelism, "parallelism above max_parallelism"
    assert 0 <= index < parallelism, "subtask index out of range"
    start = -(-index * max_parallelism // parallelism)
    stop = -(-(index + 1) * max_parallelism // parallelism)
    return range(start, stop)
