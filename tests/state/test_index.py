"""The key index against a dictionary, through growth, removal and reuse of slots."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.state.index import NOWHERE, KeyIndex


def rows(keys: list[tuple[int, int]]) -> np.ndarray:
    return np.array(keys, dtype=np.int64).reshape(len(keys), 2).T


KEYS = st.tuples(st.sampled_from([-(2**63), -1, 0, 1, 2, 3, 2**62]), st.integers(0, 20))


@given(st.lists(st.tuples(st.booleans(), st.sets(KEYS, max_size=25)), max_size=30))
def test_it_behaves_like_a_dictionary(steps: list[tuple[bool, set[tuple[int, int]]]]) -> None:
    index, model = KeyIndex(2), dict[tuple[int, int], int]()
    for adding, keys in steps:
        chosen = sorted(key for key in keys if (key in model) != adding)
        if adding:
            model.update(zip(chosen, index.add(rows(chosen)).tolist(), strict=True))
        else:
            index.remove(np.array([model.pop(key) for key in chosen], dtype=np.intp))
        asked = sorted(keys | set(model))
        assert index.find(rows(asked)).tolist() == [model.get(key, NOWHERE) for key in asked]
        assert index.slots().tolist() == sorted(model.values())
        assert len(index) == len(model)


def test_many_keys_come_and_go_without_the_index_growing_for_ever() -> None:
    index = KeyIndex(1)
    for start in range(0, 400_000, 20_000):
        keys = np.arange(start, start + 20_000, dtype=np.int64)[np.newaxis, :]
        slots = index.add(keys)
        assert (index.find(keys) == slots).all()
        index.remove(slots)
        assert (index.find(keys) == NOWHERE).all()
    assert len(index) == 0
    assert index.capacity <= 32_768


@given(st.integers(0, 2**32))
@settings(max_examples=20)
def test_removing_some_keys_never_hides_others(seed: int) -> None:
    random, index = np.random.default_rng(seed), KeyIndex(1)
    model = dict[int, int]()
    for _ in range(6):
        fresh = np.setdiff1d(random.integers(0, 20_000, 3000), list(model))
        model.update(zip(fresh.tolist(), index.add(fresh[np.newaxis, :]).tolist(), strict=True))
        gone = random.permutation(list(model))[: len(model) // 2]
        index.remove(np.array([model.pop(key) for key in gone.tolist()], dtype=np.intp))
        everything = np.arange(20_000, dtype=np.int64)
        expected = [model.get(key, NOWHERE) for key in everything.tolist()]
        assert index.find(everything[np.newaxis, :]).tolist() == expected


def test_keys_can_be_recoded_in_place() -> None:
    index = KeyIndex(2)
    slots = index.add(rows([(5, 1), (6, 1), (7, 2)]))
    index.recode(0, slots, np.array([0, 1, 2]))
    assert index.find(rows([(0, 1), (1, 1), (2, 2), (5, 1)])).tolist() == [*slots.tolist(), NOWHERE]
