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

from runtime.core.snapshot.manifest import SubtaskSnapshot
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
    with pytest.raises(JobRejected, match=rf"seen: .*{type(value).__name__}") as error:
        encode("seen", around(value))
    assert error.value.code == "bad-state-value"


@given(VALUES)
def test_all_others_come_back_as_they_were(value: Any) -> None:
    back = msgspec.msgpack.decode(encode("seen", value))
    assert repr(back) == repr(value)


NO_JSON: list[Any] = [
    (1, 2), {1}, {1: "a"}, b"x", float("nan"), float("inf"), 2**64, -(2**63) - 1, 2**200,
    "\ud800", {"\udfff": 1}, Colour.RED,
]  # fmt: skip
JSON_ATOMS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
JSON_VALUES = st.recursive(JSON_ATOMS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@pytest.mark.parametrize("value", NO_JSON, ids=repr)
@pytest.mark.parametrize("around", [lambda v: v, lambda v: [1, v], lambda v: {"deep": [{"x": v}]}])
def test_list_state_refuses_values_that_a_manifest_cannot_hold(value: Any, around: Any) -> None:
    state = OperatorList("splits", [1])
    with pytest.raises(JobRejected, match="splits: ") as error:
        state.replace([around(value)])
    assert error.value.code == "bad-state-value"
    assert state.get() == [1], "the values before"


def test_list_state_refuses_a_list_that_contains_itself() -> None:
    values: list[Any] = []
    values.append(values)
    with pytest.raises(JobRejected, match="splits: "):
        OperatorList("splits").replace(values)


@given(st.lists(JSON_VALUES))
def test_a_manifest_returns_the_values_of_list_state_as_they_were(values: list[Any]) -> None:
    state = OperatorList("splits", values)
    snapshot = SubtaskSnapshot(lists={"splits": state.capture()})
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot), type=SubtaskSnapshot)  # as a slot sends it
    back = msgspec.json.decode(msgspec.json.encode(sent), type=SubtaskSnapshot)
    assert repr(list(back.lists["splits"])) == repr(state.get()) == repr(values)
