"""Values that a state would give back as another type are refused by its name."""

from collections import Counter, OrderedDict
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import JobRejected
from runtime.state.list_state import OperatorList
from runtime.state.values import encode


class Colour(StrEnum):
    RED = "red"


OTHERS: list[Any] = [
    {1, 2}, frozenset("a"), (1, 2), datetime(2026, 1, 1), Decimal(1), UUID(int=1), Colour.RED,  # noqa: DTZ001
    OrderedDict(a=1), Counter("a"), object(), 1j,
]  # fmt: skip
ATOMS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
)
VALUES = st.recursive(ATOMS, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 9), inner))


@pytest.mark.parametrize("value", OTHERS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("around", [lambda v: v, lambda v: [1, v], lambda v: {"deep": [{"x": v}]}])
def test_a_value_that_would_come_back_as_another_type_is_refused(value: Any, around: Any) -> None:
    with pytest.raises(JobRejected, match=rf"seen: .*{type(value).__name__}") as refused:
        encode("seen", around(value))
    assert refused.value.code == "bad-state-value"


@given(VALUES)
def test_all_others_come_back_as_they_were(value: Any) -> None:
    back = msgspec.msgpack.decode(encode("seen", value))
    assert repr(back) == repr(value)


@pytest.mark.parametrize("value", [(1, 2), {1}, {1: "a"}, b"x", float("nan"), {"deep": [{2: 3}]}])
def test_list_state_refuses_what_json_would_change(value: Any) -> None:
    with pytest.raises(JobRejected, match="splits: "):
        OperatorList("splits").replace([value])


def test_list_state_holds_integers_of_any_size() -> None:
    state = OperatorList("hashes", [2**128])
    assert OperatorList("hashes", state.capture()).get() == [2**128]
