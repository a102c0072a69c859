"""Operators with state emit the same rows whatever happens to the state: a share of the cases of `differential`."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.example_counts import examples
from tests.operators.differential import KINDS, LEFT_OUT, Case, modules_with_state


def test_every_operator_that_declares_state_takes_part_or_has_a_reason() -> None:
    modules = {module.__name__ for kind in KINDS.values() for module in kind.modules}
    assert modules_with_state() - modules - {*LEFT_OUT} == set()
    assert {*LEFT_OUT} <= modules_with_state()


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=examples(20))
@given(seed=st.integers(0, 1_000_000))
def test_an_operator_emits_the_same_rows_over_checkpoints_merges_and_restores(name: str, seed: int) -> None:
    """S3-21, S3-31, S4-02. Repeat: `python -m tests.operators.differential --replay NAME SEED`."""
    assert Case(name, seed).check() == ""
