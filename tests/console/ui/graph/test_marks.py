"""Marks of operators: each finding that names an operator has a word and a shape."""

import pytest

from console.health.assessment import RULES
from console.health.findings import Finding, Level
from console.ui.graph.marks import OperatorMark, marks
from console.ui.status import Meaning

NAMES = {"orders": "orders", "join": "join orders", "sink": "sink"}
#: Rules on the run as a whole, its processes or all of its checkpoints.
WITHOUT_OPERATOR = {
    "low-disk",
    "lost-lease",
    "old-numbers",
    "no-worker",
    "no-slots",
    "silent-master",
    "silent-slot",
    "other-code",
    "savepoint-failed",
    "schedule-missed",
    "drill-failed",
    "slow-change",
    "checkpoints-overdue",
    "unreadable",
}


def test_the_root_of_backpressure_is_slow_and_the_others_wait_for_it() -> None:
    slow = Finding(sentence="", rule="backpressure", operator="join", waiting=("orders",))
    assert marks([slow], NAMES) == {
        "join": OperatorMark("slow", "triangle", Meaning.ATTENTION),
        "orders": OperatorMark("waits for join orders", "pause", Meaning.BUSY),
    }


def test_a_skewed_operator_has_its_skew() -> None:
    finding = Finding(sentence="", rule="skew", operator="join")
    assert marks([finding], NAMES, {"join": 3.96})["join"].word == "skewed 4.0×"


def test_the_most_severe_finding_counts_and_blame_counts_more_than_waiting() -> None:
    failed = Finding(sentence="", rule="restart-loop", operator="orders", level=Level.FAILED)
    skew = Finding(sentence="", rule="skew", operator="join")
    slow = Finding(sentence="", rule="backpressure", operator="join", waiting=("orders",))
    result = marks([failed, skew, slow], NAMES)
    assert result == {
        "orders": OperatorMark("fails", "square", Meaning.FAILED),
        "join": OperatorMark("skewed", "triangle", Meaning.ATTENTION),
    }


def test_findings_on_no_operator_or_on_an_unknown_one_mark_nothing() -> None:
    assert (
        marks([Finding(sentence="", rule="silent-master"), Finding(sentence="", rule="skew", operator="x")], NAMES)
        == {}
    )


@pytest.mark.parametrize("rule", [rule.name for rule in RULES])
def test_every_rule_that_blames_an_operator_has_a_word(rule: str) -> None:
    result = marks([Finding(sentence="", rule=rule, operator="sink")], NAMES)
    assert bool(result) is (rule not in WITHOUT_OPERATOR)
