"""Backpressure and its root, skew, watermarks that stand still, growth of state: each rule at its border."""

import pytest

from runtime.core.job.graph import Role
from tests.console.health.facts_of import found, operator, operators, sentence, subtask

MIB = 1024 * 1024


def blocked(*shares: float, busy: float = 1.0) -> dict[str, object]:
    """`orders`, `payments` and `join` wait for their receivers; `sink` is `busy`."""
    uids = ("orders", "payments", "join")
    changes = {uid: {"subtasks": (subtask(backpressured=s),)} for uid, s in zip(uids, shares, strict=True)}
    return {"operators": operators(**changes, sink={"subtasks": (subtask(busy=busy), subtask(1, busy=0.1))})}


def test_backpressure_names_the_root_and_the_number_of_operators_that_wait() -> None:
    assert sentence("backpressure", **blocked(0.9, 0.6, 0.95)) == (
        "Backpressure from `sink`, which is 100 % busy; 3 operators wait for it up to 95 % of the time."
    )
    finding = found("backpressure", **blocked(0.9, 0.6, 0.95))
    assert finding is not None
    assert finding.waiting == ("join", "payments", "orders")


def test_the_root_is_below_the_most_downstream_operator_that_waits() -> None:
    finding = found("backpressure", **blocked(0.9, 0.1, 0.1))
    assert finding is not None
    assert finding.operator == "join"
    assert "`orders` waits for it" in finding.sentence
    assert "which is only 30 % busy" in finding.sentence, "the receiver itself does not explain it"


@pytest.mark.parametrize(("share", "lit", "is_found"), [(0.5, False, True), (0.49, False, False), (0.3, True, True),
                                                        (0.29, True, False)])  # fmt: skip
def test_backpressure_has_a_limit_to_begin_and_a_lower_one_to_end(share: float, lit: bool, is_found: bool) -> None:
    rules = frozenset({"backpressure"} if lit else ())
    assert (found("backpressure", lit=rules, **blocked(share, 0.0, 0.0)) is not None) is is_found


def test_a_job_that_reads_all_it_can_is_well_while_it_catches_up_or_has_an_end() -> None:
    """A backlog is read at full speed, so sources are backpressured: event time advances faster than the clock."""
    sick = blocked(0.9, 0.9, 0.9)["operators"]
    assert isinstance(sick, dict)
    fast = {uid: {"subtasks": (subtask(backpressured=0.9, advance_ms=200_000),)} for uid in ("orders", "payments")}
    assert found("backpressure", operators=operators(**fast)) is None
    slow = {uid: {"subtasks": (subtask(backpressured=0.9, advance_ms=69_000),)} for uid in ("orders", "payments")}
    assert found("backpressure", operators=operators(**slow)) is not None
    bounded = {uid: {**changes, "bounded": True} for uid, changes in slow.items()}
    assert found("backpressure", operators=operators(**bounded)) is None


def test_a_young_attempt_has_no_backpressure_yet() -> None:
    assert found("backpressure", flow_s=10.0, **blocked(0.9, 0.9, 0.9)) is None


def skewed(records: float, busy: float) -> dict[str, object]:
    subtasks = (subtask(0, records_per_s=records, busy=busy), *(subtask(n, busy=0.1) for n in (1, 2, 3)))
    return {"operators": operators(join={"subtasks": subtasks})}


def test_skew_names_the_subtask_and_its_share() -> None:
    assert sentence("skew", **skewed(28_500.0, 0.98)) == (
        "Skew: subtask 0 of `join` gets 95 % of the records of 4 subtasks. It is 98 % busy, the others 10 % on average."
    )


@pytest.mark.parametrize(("records", "busy", "is_found"), [(2_500.0, 0.9, True), (2_400.0, 0.9, False),
                                                           (9_000.0, 0.49, False)])  # fmt: skip
def test_skew_begins_at_two_and_a_half_times_the_mean_of_four_busy_subtasks(
    records: float, busy: float, is_found: bool
) -> None:
    assert (found("skew", **skewed(records, busy)) is not None) is is_found


def test_an_idle_input_that_holds_event_time_is_named() -> None:
    silent = subtask(records_per_s=0.0, still_s=65.0, advance_ms=0)
    said = sentence("watermark", operators=operators(payments={"subtasks": (silent,)}))
    assert said == (
        "Event time stands still: `payments` has sent no records for 1 min 5 s and holds the watermark, "
        "while `orders` goes on."
    )


def test_an_input_is_no_finding_while_it_is_marked_idle_or_young_or_alone() -> None:
    """If all inputs are silent, there is nothing to do; inputs that no operator joins do not hold each other."""
    silent = subtask(records_per_s=0.0, still_s=65.0, advance_ms=0)

    def watermark(**changes: object) -> object:
        return found("watermark", operators=operators(**changes))  # type: ignore[arg-type]

    assert watermark(payments={"subtasks": (subtask(records_per_s=0.0, still_s=55.0),)}) is None
    assert watermark(payments={"subtasks": (subtask(records_per_s=0.0, still_s=65.0, idle=True),)}) is None
    assert watermark(payments={"subtasks": (silent,)}, orders={"subtasks": (silent,)}) is None
    assert watermark(payments={"subtasks": (subtask(records_per_s=0.0, still_s=65.0, watermark=None),)}) is None
    apart = {**operators(payments={"subtasks": (silent,)}), "join": operator("join", "orders")}
    assert found("watermark", operators=apart) is None


def test_a_silent_subtask_and_a_watermark_that_stands_while_records_come_are_named() -> None:
    silent = subtask(1, records_per_s=0.0, still_s=70.0, watermark=None)
    said = sentence("watermark", operators=operators(orders={"subtasks": (subtask(0), silent)}))
    assert "subtask 1 of `orders` has sent no records for at least 1 min 10 s" in said
    assert "while its other subtasks go on" in said
    stuck = operators(orders={"subtasks": (subtask(still_s=60.0, advance_ms=0),)})
    assert "although it reads 500 /s: a partition without records holds it" in sentence("watermark", operators=stuck)


@pytest.mark.parametrize(("sizes", "is_found"), [((300, 400, 534), True), ((300, 400, 530), False),
                                                 ((30, 60, 120), False), ((None, 400, 900), False)])  # fmt: skip
def test_state_grows_if_it_gains_a_third_in_each_of_two_hours(
    sizes: tuple[int | None, int, int], is_found: bool
) -> None:
    state_bytes = tuple(size and size * MIB for size in sizes)
    assert (found("state-growth", operators=operators(join={"state_bytes": state_bytes})) is not None) is is_found


def test_a_loop_does_not_hang_the_walk_over_the_graph() -> None:
    """Feedback edges are no inputs; an operator that names itself must not be walked for ever either."""
    looped = {
        "a": operator("a", "b", role=Role.SOURCE, subtasks=(subtask(backpressured=0.9),)),
        "b": operator("b", "a"),
    }
    assert found("backpressure", operators=looped) is not None
