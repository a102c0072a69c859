"""Backpressure and its root, skew, watermarks that stand still, growth of state: each rule at its border."""

from dataclasses import replace

import pytest

from console import formats
from console.health.facts import CheckpointFacts, SentFacts
from console.health.findings import Level
from console.metrics.live import EndingLive, Live, OperatorLive
from runtime.core.job.graph import Role
from runtime.core.job.lifecycle import RunState
from runtime.core.subtask.watermark_alignment import WAITED_COUNTER
from runtime.operators.functions.set_aside import SET_ASIDE_COUNTER
from tests.console.health.facts_of import ago, checkpoint, found, operator, operators, sentence, subtask, verdict

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


def test_the_root_does_not_move_to_the_receiver_of_a_slow_operator_while_the_rule_is_lit() -> None:
    """The second expiry blamed the sink: the lower limit of a lit rule took the slow step for one that waits."""
    slow = {"subtasks": (subtask(busy=0.62, backpressured=0.35),)}
    waits = {"subtasks": (subtask(backpressured=0.9),)}
    changes = {"operators": operators(orders=waits, join=slow, sink={"subtasks": (subtask(busy=0.03),)})}
    for lit in (frozenset(), frozenset({"backpressure"})):
        finding = found("backpressure", lit=lit, **changes)
        assert finding is not None
        assert finding.operator == "join", lit
    expired = CheckpointFacts(
        interval_ms=5_000, newest=checkpoint(completed_at=ago(200)), failed=2, failed_number=9, failed_reason="expired"
    )
    second = found("checkpoints-fail", lit=frozenset({"backpressure"}), checkpoints=expired, **changes)
    assert second is not None
    assert second.sentence.endswith("Barriers wait for `join`, which is only 62 % busy; `orders` waits for it.")


def test_a_hot_key_is_not_relieved_by_more_subtasks() -> None:
    """The page of a job with a hot key offered *Rescale the job…*, and advised a higher parallelism."""
    hot = (subtask(0, records_per_s=28_500.0, busy=0.98), *(subtask(n, busy=0.1) for n in (1, 2, 3)))
    waits = {"subtasks": (subtask(backpressured=0.9),)}
    for changes, act in (({"join": {"subtasks": hot}, "orders": waits}, ""),
                         ({"join": {"subtasks": (subtask(busy=0.98),)}, "orders": waits}, "rescale")):  # fmt: skip
        slow = found("backpressure", operators=operators(**changes))
        assert slow is not None
        assert (slow.operator, slow.act) == ("join", act)
        assert ("hot key" in slow.remedy) is not bool(act)
        assert ("parallelism" in slow.remedy) is bool(act)


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


def starved(busy: float, advance_ms: int, **join: object) -> dict[str, object]:
    """`join` takes the time of slot 1, whose `orders` finds none; event time advances so much in 70 s."""
    orders = (subtask(0, busy=0.1, advance_ms=70_000), subtask(1, busy=0.01, advance_ms=advance_ms))
    return {
        "operators": operators(
            orders={"subtasks": orders},
            payments={"subtasks": ()},
            join={"subtasks": (subtask(0, busy=0.2), subtask(1, busy=busy)), **join},
            sink={"subtasks": ()},
        )
    }


def test_an_operator_that_takes_the_time_of_its_slot_is_named_though_nothing_waits_for_it() -> None:
    """A map of 20 ms a row was healthy for ever: the source in its slot had no time to run, and counted nothing."""
    finding = found("saturated", **starved(0.97, 28_000))
    assert finding is not None
    assert finding.operator == "join"
    assert finding.sentence == (
        "The operators of slot 1 take 98 % of its time, `join` most, 97 %: event time advances 0.4 s per second."
    )


@pytest.mark.parametrize(
    ("busy", "advance_ms", "lit", "is_found"),
    [
        (0.89, 62_000, False, True),
        (0.78, 62_000, False, False),  # the slot has time left
        (0.8, 62_000, True, True),
        (0.97, 63_000, False, False),  # event time keeps up
        (0.97, 140_000, False, False),  # a catch-up runs at full speed
    ],
)
def test_saturation_has_limits(busy: float, advance_ms: int, lit: bool, is_found: bool) -> None:
    rules = frozenset({"saturated"} if lit else ())
    assert (found("saturated", lit=rules, **starved(busy, advance_ms)) is not None) is is_found


def test_an_expired_checkpoint_names_the_operator_that_takes_the_time_of_its_slot() -> None:
    """The step blocked for longer than the time-out: its neighbours had no time to wait, and nobody was to blame."""
    expired = CheckpointFacts(interval_ms=5_000, failed=2, failed_number=9, failed_reason="expired")
    finding = found("checkpoints-fail", checkpoints=expired, **starved(0.97, 70_000))
    assert finding is not None
    assert finding.operator == "join"
    assert finding.sentence.endswith(
        "9 with expired. The operators of slot 1 take 98 % of its time, `join` most, 97 %."
    )


def test_a_silent_source_is_not_starved() -> None:
    """Else a busy machine is named as the cause of event time that stands still for want of records."""
    facts = starved(0.97, 70_000)
    silent = operators(payments={"subtasks": (subtask(0, records_per_s=0.0, advance_ms=0.0),)})["payments"]
    assert found("saturated", operators={**facts["operators"], "payments": silent}) is None  # type: ignore[dict-item]


def test_a_source_that_is_busy_itself_saturates_nothing() -> None:
    assert found("saturated", **lagging(2, 3, advance_ms=28_000)) is None


MINUTE_MS = 60_000


def lagging(before_min: float, now_min: float, **numbers: object) -> dict[str, object]:
    orders = {"subtasks": (subtask(**{"busy": 0.97, **numbers}),)}  # type: ignore[arg-type]
    return {"operators": operators(orders={**orders, "lag_ms": (before_min * MINUTE_MS, now_min * MINUTE_MS)})}


def test_a_source_at_its_limit_that_falls_behind_is_named_though_nothing_is_backpressured() -> None:
    assert sentence("falls-behind", **lagging(111, 125)) == (
        "`orders` falls behind: its event time is 2 h 5 min behind the clock, 14 min more than 15 min ago; "
        "it is 97 % busy."
    )


def test_a_source_that_falls_behind_for_a_slow_operator_names_it() -> None:
    changes = lagging(10, 25, busy=0.1, backpressured=0.9)
    finding = found("falls-behind", **changes)
    assert finding is not None
    assert finding.operator == "join"
    assert finding.sentence.endswith("it waits for `join`, which is 30 % busy.")


@pytest.mark.parametrize(
    ("before_min", "now_min", "numbers", "is_found"),
    [
        (2, 5, {}, True),
        (1.9, 4.9, {}, False),  # disorder
        (10, 12.9, {}, False),  # event time advances 0.8 times as fast as the clock
        (20, 10, {}, False),  # it catches up
        (10, 25, {"busy": 0.79}, False),  # it reads all that there is: the input itself is late
        (10, 25, {"records_per_s": 0.0}, False),  # nothing to read
    ],
)
def test_falling_behind_has_limits(
    before_min: float, now_min: float, numbers: dict[str, object], is_found: bool
) -> None:
    assert (found("falls-behind", **lagging(before_min, now_min, **numbers)) is not None) is is_found


def slowed(per_s: float, usual_per_s: float = 1_000.0, busy: float = 0.97) -> dict[str, object]:
    source = {"subtasks": (subtask(records_per_s=per_s, busy=busy),), "usual_per_s": usual_per_s}
    return {"operators": operators(orders=source)}


def test_a_source_at_its_limit_that_reads_at_most_half_of_its_usual_records_falls_behind() -> None:
    """S1: a job at a quarter of its rate was told that its checkpoints are slow."""
    assert sentence("falls-behind", **slowed(250.0), behind_newest_ms=213_000) == (
        "`orders` falls behind: it reads 250 /s of its usual 1.0 k/s, and the watermark is 3 min 33 s behind the "
        "newest record; it is 97 % busy."
    )
    assert "watermark" not in sentence("falls-behind", **slowed(250.0), lag_ms=900, behind_newest_ms=213_000)
    old = {"lag_ms": 213_000, "sampled_at": ago(60)}
    assert "watermark" not in sentence("falls-behind", **slowed(250.0), **old), "it is not of the samples"
    assert found("falls-behind", **slowed(250.0), watermark_s=40.0) is None, "event time goes 1.75 times as fast"


@pytest.mark.parametrize(
    ("per_s", "usual_per_s", "busy", "lit", "is_found"),
    [
        (500.0, 1_000.0, 0.97, False, True),
        (501.0, 1_000.0, 0.97, False, False),
        (699.0, 1_000.0, 0.97, True, True),
        (701.0, 1_000.0, 0.97, True, False),
        (250.0, 1_000.0, 0.5, False, False),  # it reads all that there is
        (250.0, 0.0, 0.97, False, False),  # its usual rate is unknown
    ],
)
def test_a_loss_of_records_has_a_limit_to_begin_and_a_lower_one_to_end(
    per_s: float, usual_per_s: float, busy: float, lit: bool, is_found: bool
) -> None:
    rules = frozenset({"falls-behind"} if lit else ())
    assert (found("falls-behind", lit=rules, **slowed(per_s, usual_per_s, busy)) is not None) is is_found


@pytest.mark.parametrize(
    ("busy_of_others", "per_s", "is_found"), [(0.05, 43.0, False), (0.9, 43.0, True), (0.0, 0.0, True)]
)
def test_a_single_hot_subtask_does_not_explain_half_of_the_records(
    busy_of_others: float, per_s: float, is_found: bool
) -> None:
    """At night seven of eight partitions have few records. A subtask without a partition does not count."""
    siblings = [subtask(index, records_per_s=per_s, busy=busy_of_others) for index in range(1, 8)]
    orders = {"subtasks": (subtask(0, records_per_s=800.0, busy=0.85), *siblings), "usual_per_s": 2_400.0}
    assert (found("falls-behind", operators=operators(orders=orders)) is not None) is is_found


def test_a_bounded_source_does_not_fall_behind() -> None:
    changes = lagging(10, 25)["operators"]
    assert isinstance(changes, dict)
    assert found("falls-behind", operators={**changes, "orders": replace(changes["orders"], bounded=True)}) is None


def quiet(minutes: float | None, quarters: int, with_records: int, **numbers: object) -> dict[str, object]:
    sent = SentFacts(quarters=quarters, with_records=with_records, per_s=84_000 if quarters else 0)
    subtasks = (subtask(**{"records_per_s": 0.0, **numbers}),)  # type: ignore[arg-type]
    since = None if minutes is None else ago(60 * minutes)
    return {"operators": operators(orders={"sent": sent, "subtasks": subtasks, "silent_since": since})}


def test_an_input_that_was_steady_and_has_gone_silent_is_named_even_if_it_is_alone() -> None:
    finding = found("input-silent", **quiet(125, 60, 60, idle=True))
    assert finding is not None
    assert finding.sentence == "`orders` has sent no records for 2 h 5 min; before, it sent 84 k/s."
    assert finding.since == ago(125 * 60)
    assert "the system before `orders`" in finding.remedy


@pytest.mark.parametrize(
    ("changes", "is_found"),
    [
        (quiet(15, 4, 4), True),
        (quiet(14.9, 4, 4), False),
        (quiet(15, 3, 3), False),  # young
        (quiet(15, 40, 35), False),  # it often pauses
        (quiet(15, 40, 36), True),
        (quiet(None, 40, 40, records_per_s=0.1), False),  # records come again
    ],
)
def test_a_silent_input_has_limits(changes: dict[str, object], is_found: bool) -> None:
    assert (found("input-silent", **changes) is not None) is is_found


@pytest.mark.parametrize(
    ("limit_s", "silent_s", "is_found"), [(60, 75, True), (75, 75, True), (76, 75, False), (60, None, False)]
)
def test_a_job_has_its_own_limit_of_silence(limit_s: int, silent_s: float | None, is_found: bool) -> None:
    """A stopped source was green for 15 minutes, and for ever in its first hour."""
    source = {"subtasks": (subtask(records_per_s=0.0),), "silent_since": None if silent_s is None else ago(silent_s)}
    changes = {"operators": operators(orders=source), "max_silence_s": limit_s}
    finding = found("input-silent", **changes)
    assert (finding is not None) is is_found
    if finding is not None:
        assert finding.sentence == (
            f"`orders` has sent no records for 1 min 15 s; the limit of the job is {formats.duration(limit_s * 1000)}."
        )
        assert finding.since == ago(75)


def test_a_silent_input_stays_a_finding_after_a_day() -> None:
    """After a day no quarter with records is left, and the same time a day before was silent too."""
    changes = quiet(60 * 30, 0, 0)["operators"]
    assert isinstance(changes, dict)
    sent = replace(changes["orders"].sent, was_silent_before=True)
    former = replace(changes["orders"], sent=sent, lit=frozenset({"input-silent"}))
    finding = found("input-silent", operators={**changes, "orders": former})
    assert finding is not None
    assert finding.sentence == "`orders` has sent no records for 1 d 6 h."
    assert finding.since == ago(30 * 3_600)
    assert found("input-silent", operators=changes, lit=frozenset({"input-silent"})) is None, "of another source"


@pytest.mark.parametrize("limit_s", [0, 60])
@pytest.mark.parametrize(
    "changes",
    [
        {"live": Live(at=ago(1), sources_paused=True)},
        {"live": Live(at=ago(1), ending=EndingLive())},
        {"state": RunState.STOPPING},
        {"state": RunState.DRAINING},
        {"operators": quiet(60, 40, 40, backpressured=0.3)["operators"]},
    ],
)
def test_a_source_that_may_not_read_says_nothing_about_the_system_before_it(
    limit_s: int, changes: dict[str, object]
) -> None:
    silent = {**quiet(60, 40, 40), "max_silence_s": limit_s}
    assert found("input-silent", **silent)
    held = verdict(**{**silent, **changes})
    assert "input-silent" not in {finding.rule for finding in held.findings}
    assert held.silent_inputs == ()


@pytest.mark.parametrize(
    ("waited_ms", "watermark", "is_found"), [(9_000, 500_000, False), (0, 500_000, True), (9_000, 2_000_000, True)]
)
def test_a_source_that_waits_for_a_slower_one_is_not_silent(waited_ms: int, watermark: int, is_found: bool) -> None:
    """`max_drift` pauses a source while another one is behind it in event time."""
    counters = {WAITED_COUNTER: waited_ms} if waited_ms else {}
    entries = quiet(60, 40, 40)["operators"]
    assert isinstance(entries, dict)
    slower = replace(entries["payments"], subtasks=(subtask(watermark=watermark),))
    changes = {
        "live": Live(at=ago(1), operators={"orders": OperatorLive(counters=counters)}),
        "operators": {**entries, "payments": slower},
    }
    assert (found("input-silent", **changes) is not None) is is_found
    assert bool(verdict(**changes).silent_inputs) is is_found


def test_silence_counts_up_to_the_newest_sample() -> None:
    """Old samples do not show whether records have come since."""
    source = {"subtasks": (subtask(records_per_s=0.0),), "silent_since": ago(600)}
    changes = {"operators": operators(orders=source), "sampled_at": ago(550)}
    assert found("input-silent", max_silence_s=60, **changes) is None
    finding = found("input-silent", max_silence_s=50, **changes)
    assert finding is not None
    assert finding.sentence == "`orders` had sent no records for 50 s; the limit of the job is 50 s."
    assert finding.ages == ()
    assert finding.as_of == ago(550)


def test_a_silent_input_is_a_fact_before_it_is_a_finding() -> None:
    source = {"subtasks": (subtask(records_per_s=0.0),), "silent_since": ago(12)}
    silent = verdict(operators=operators(orders=source))
    assert silent.level is Level.OK
    assert [(each.operator, each.since) for each in silent.silent_inputs] == [("orders", ago(12))]
    for changes in ({"bounded": True}, {"finished": True}, {"silent_since": ago(9)}):
        assert verdict(operators=operators(orders={**source, **changes})).silent_inputs == ()
    assert verdict(operators=operators(orders=source), sampled_at=ago(60)).silent_inputs == (), "old numbers"


def test_an_input_that_pauses_each_night_or_weekend_is_not_silent() -> None:
    changes = quiet(125, 60, 60)["operators"]
    assert isinstance(changes, dict)
    sent = replace(changes["orders"].sent, was_silent_before=True)
    assert found("input-silent", operators={**changes, "orders": replace(changes["orders"], sent=sent)}) is None


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


def of_eight(blocked: float, busy: float, **changes: float) -> dict[str, object]:
    """Subtask 3 of `orders` waits for subtask 3 of `join`, behind a forward edge. All others are free."""
    senders = tuple(subtask(n, backpressured=blocked if n == 3 else 0.0, **changes) for n in range(8))
    receivers = tuple(subtask(n, busy=busy if n == 3 else 0.1) for n in range(8))
    return {"orders": {"subtasks": senders}, "join": {"subtasks": receivers}}


@pytest.mark.parametrize(("blocked", "busy", "is_found"), [(0.8, 0.8, True), (0.79, 1.0, False), (1.0, 0.79, False)])
def test_a_single_slow_subtask_behind_a_forward_edge_has_limits(blocked: float, busy: float, is_found: bool) -> None:
    graph = operators(**of_eight(blocked, busy))  # type: ignore[arg-type]
    assert (found("backpressure", operators=graph) is not None) is is_found


def test_a_subtask_behind_a_hash_edge_does_not_block_the_sender_with_its_index() -> None:
    """Each sender has records for all receivers, so the subtask that waits may wait for any of them."""
    graph = operators(**of_eight(1.0, 1.0))  # type: ignore[arg-type]
    assert found("backpressure", operators={**graph, "join": replace(graph["join"], forward_inputs=())}) is None


def test_a_single_slow_subtask_is_named_though_the_operator_is_backpressured_by_an_eighth() -> None:
    graph = operators(**of_eight(0.95, 1.0))  # type: ignore[arg-type]
    finding = found("backpressure", operators=graph)
    assert finding is not None
    assert (finding.operator, finding.waiting) == ("join", ("orders",))
    assert finding.sentence == (
        "Backpressure from subtask 3 of `join`, which is 100 % busy; subtask 3 of `orders` waits for it 95 % of the "
        "time, the other subtasks 0 % on average."
    )
    behind = {**graph, "orders": replace(graph["orders"], lag_ms=(10 * MINUTE_MS, 25 * MINUTE_MS))}
    late = found("falls-behind", operators=behind)
    assert late is not None
    assert late.operator == "join"
    assert late.sentence.endswith("it waits for subtask 3 of `join`, which is 100 % busy.")


def test_a_subtask_that_waits_itself_is_not_the_slow_one_and_a_backlog_is_well() -> None:
    graph = operators(**of_eight(0.95, 1.0))  # type: ignore[arg-type]
    waiting = tuple(replace(each, backpressured=0.4) for each in graph["join"].subtasks)
    assert found("backpressure", operators={**graph, "join": replace(graph["join"], subtasks=waiting)}) is None
    bounded = {uid: replace(each, bounded=True) for uid, each in graph.items()}
    assert found("backpressure", operators=bounded) is None


def begun(open_results: dict[str, int], **changes: object) -> dict[str, object]:
    """`payments` has sent no record since the start, so `join` has no watermark."""
    silent = {"records_per_s": 0.0, "still_s": 70.0, "watermark": None, "advance_ms": 0}
    waiting = subtask(still_s=70.0, watermark=None, advance_ms=0)
    live = Live(at=ago(1), operators={"join": OperatorLive(open_results=open_results)})
    sources = {"payments": {"subtasks": (subtask(**{**silent, **changes}),)}}  # type: ignore[arg-type]
    return {"operators": operators(**sources, join={"subtasks": (waiting,)}), "live": live}


def test_an_input_that_is_silent_from_the_start_holds_event_time() -> None:
    finding = found("watermark", **begun({"joined": 40}))
    assert finding is not None
    assert finding.operator == "payments"
    assert finding.sentence == (
        "Event time has not begun: `payments` has sent no records for at least 1 min 10 s, while `orders` goes on."
    )


@pytest.mark.parametrize(
    "changes", [{"idle": True}, {"still_s": 55.0}, {"records_per_s": 1.0}, {"watermark": 5, "still_s": 5.0}]
)
def test_an_input_without_a_watermark_is_well_while_no_result_waits_for_it(changes: dict[str, object]) -> None:
    """Neither a union nor a sink needs event time."""
    assert found("watermark", **begun({"joined": 40}, **changes)) is None
    assert found("watermark", **begun({})) is None
    assert found("watermark", **begun({"rows": 40})) is None


def test_rows_set_aside_are_counted_by_operator_and_error() -> None:
    counters = {f"{SET_ASIDE_COUNTER}KeyError": 2, f"{SET_ASIDE_COUNTER}ValueError": 1_000, "late_records": 7}
    live = Live(operators={"join": OperatorLive(counters=counters)})
    text = sentence("rows-set-aside", live=live)
    assert (
        f"`join` has set aside in this attempt: {formats.count(1_002)}. Errors: ValueError ({formats.count(1_000)}) and"
        in text
    )
    assert found("rows-set-aside", live=Live(operators={"join": OperatorLive()})) is None
