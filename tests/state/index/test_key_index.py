"""The key index against a dictionary, through growth, removal and reuse of slots."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.state.index.blocks import BlockIndex, BlockLimits
from runtime.state.index.buckets import BucketIndex
from runtime.state.index.key_index import DEFAULT_TUNING, NOT_FOUND, IndexTuning, KeyIndex


def rows(keys: list[tuple[int, int]]) -> np.ndarray:
    return np.array(keys, dtype=np.int64).reshape(len(keys), 2).T


NARROW = IndexTuning(
    blocks=BlockLimits(min_entries=6, max_blocks=4, new_entries_per_key=2, kept_entries_per_key=4),
    min_moved_keys=1,
    moved_per_added_key=1,
    min_prepared_keys=0,
    min_buckets=8,
)  #: few keys are enough to leave one form for the other, and they follow one by one
TUNINGS = {
    "as it is": DEFAULT_TUNING,
    "narrow": NARROW,
    "buckets only": replace(NARROW, blocks=replace(NARROW.blocks, max_blocks=0)),
}
SMALL_BLOCKS = BlockLimits(min_entries=1 << 10, max_entries=1 << 14)


def form_of(index: KeyIndex) -> type:
    return type(index.form)


KEYS = st.tuples(st.sampled_from([-(2**63), -1, 0, 1, 2, 3, 2**62]), st.integers(0, 20))


CLOSE = st.tuples(st.integers(-8, 12), st.sampled_from([0, 0, 0, 1, 2]))
STEPS = st.lists(st.tuples(st.booleans(), st.sets(KEYS, max_size=25) | st.sets(CLOSE, max_size=25)), max_size=30)


@pytest.mark.parametrize("tuning", TUNINGS.values(), ids=TUNINGS)
@given(steps=STEPS)
def test_it_behaves_like_a_dictionary(tuning: IndexTuning, steps: list[tuple[bool, set[tuple[int, int]]]]) -> None:
    index, model = KeyIndex(2, tuning), dict[tuple[int, int], int]()
    for adding, keys in steps:
        selection = sorted(key for key in keys if (key in model) != adding)
        if adding:
            model.update(zip(selection, index.add(rows(selection)).tolist(), strict=True))
        else:
            index.remove(np.array([model.pop(key) for key in selection], dtype=np.intp))
        everything = sorted(keys | set(model))
        one_tail = [key for key in everything if key[1] == everything[0][1]]
        for batch in (everything, one_tail):
            assert index.find(rows(batch)).tolist() == [model.get(key, NOT_FOUND) for key in batch]
        assert index.row_ids().tolist() == sorted(model.values())
        assert len(index) == len(model)


def test_many_keys_come_and_go_without_the_index_growing_for_ever() -> None:
    index = KeyIndex(1)
    for start in range(0, 400_000, 20_000):
        keys = np.arange(start, start + 20_000, dtype=np.int64)[np.newaxis, :]
        slots = index.add(keys)
        assert (index.find(keys) == slots).all()
        index.remove(slots)
        assert (index.find(keys) == NOT_FOUND).all()
    assert len(index) == 0
    assert index.capacity <= 32_768


@given(st.integers(0, 2**32))
@settings(max_examples=20)
def test_removing_some_keys_never_hides_others(seed: int) -> None:
    random, index = np.random.default_rng(seed), KeyIndex(1)
    model = dict[int, int]()
    for _ in range(6):
        additions = np.setdiff1d(random.integers(0, 20_000, 3000), list(model))
        model.update(zip(additions.tolist(), index.add(additions[np.newaxis, :]).tolist(), strict=True))
        removals = random.permutation(list(model))[: len(model) // 2]
        index.remove(np.array([model.pop(key) for key in removals.tolist()], dtype=np.intp))
        everything = np.arange(20_000, dtype=np.int64)
        expected = [model.get(key, NOT_FOUND) for key in everything.tolist()]
        assert index.find(everything[np.newaxis, :]).tolist() == expected


def test_keys_can_be_recoded_in_place() -> None:
    index = KeyIndex(2)
    slots = index.add(rows([(5, 1), (6, 1), (7, 2)]))
    index.recode(0, slots, np.array([0, 1, 2]))
    assert index.find(rows([(0, 1), (1, 1), (2, 2), (5, 1)])).tolist() == [*slots.tolist(), NOT_FOUND]


def test_numbers_close_together_are_looked_up_and_others_hashed() -> None:
    """The form follows the keys: an outlier moves them to buckets, and enough keys in between back to blocks."""
    index = KeyIndex(1)
    forms = []
    for keys in (np.arange(1000), np.array([10**7]), np.arange(1000, 3_000_000)):
        index.add(keys[np.newaxis, :])
        forms.append(form_of(index))
    assert forms == [BlockIndex, BucketIndex, BlockIndex]


def test_windows_that_come_and_go_keep_their_form() -> None:
    index, keys = KeyIndex(2), np.arange(10_000)
    for start in range(100):
        slots = index.add(np.stack([keys, np.full(10_000, start)]))
        assert (index.find(np.stack([keys[::-1], np.full(10_000, start)])) == slots[::-1]).all()
        index.remove(slots)
    assert form_of(index) is BlockIndex


@pytest.mark.parametrize("spread", [1, 2**40])
def test_no_single_batch_moves_all_keys(spread: int) -> None:
    """Keys follow to a larger form over many batches; all are found meanwhile, and all have followed in time."""
    index, moved = KeyIndex(1), []
    for start in range(0, 1_000_000, 4_000):
        keys = np.arange(start, start + 4_000)[np.newaxis, :] * spread
        before = np.count_nonzero(index._unmoved)
        slots = index.add(keys)
        moved.append(max(0, int(before - np.count_nonzero(index._unmoved))))
        queries = np.arange(0, start + 4_000, 997)[np.newaxis, :] * spread
        assert (index.find(queries) == queries[0] // spread).all()
        assert (index.find(keys) == slots).all()
    assert max(moved) <= 4 * 4_000 + 4_096


def forms_taken(index: KeyIndex, batches: Iterable[np.ndarray]) -> list[BlockIndex | BucketIndex]:
    """The forms that the index has had, in order."""
    forms = [index.form]
    for keys in batches:
        index.add(keys[np.newaxis, :])
        if index.form is not forms[-1]:
            forms.append(index.form)
    return forms


def test_keys_that_reach_the_most_entries_of_blocks_change_the_form_once() -> None:
    """Not with every batch, although a block that is nearly as large as it may be cannot grow by half."""
    batches = (np.arange(start, start + 64) for start in range(0, 1 << 15, 64))
    index = KeyIndex(1, IndexTuning(blocks=SMALL_BLOCKS))
    assert [type(form) for form in forms_taken(index, batches)] == [BlockIndex, BucketIndex]


@pytest.mark.parametrize("spread", [1, 2**40])
def test_the_memory_of_larger_buckets_is_touched_before_they_are_needed(spread: int) -> None:
    index = KeyIndex(1, IndexTuning(blocks=SMALL_BLOCKS, min_prepared_keys=1 << 17))
    batches = (np.arange(start, start + 1024) * spread for start in range(0, 1 << 20, 1024))
    forms = [form for form in forms_taken(index, batches) if isinstance(form, BucketIndex)]
    touched = [form.touched / len(form) for form in forms if len(form) >= 1 << 20]
    assert len(touched) >= 2
    assert min(touched) >= 1


def test_a_block_into_which_keys_are_still_to_follow_stays() -> None:
    keys = KeyIndex(2, IndexTuning(min_moved_keys=0, moved_per_added_key=0))
    keys.remove(keys.add(rows([(0, 0), (10**9, 0)])))  # too far apart for blocks
    early = [(first, tail) for tail in (0, 1) for first in range(60)]
    slots = keys.add(rows(early))
    assert form_of(keys) is BucketIndex
    late = keys.add(rows([(first, 1) for first in range(60, 99)]))
    assert form_of(keys) is BlockIndex
    keys.remove(late)
    for _ in range(3):
        assert keys.find(rows(early)).tolist() == slots.tolist()
    assert not keys._unmoved.any()
