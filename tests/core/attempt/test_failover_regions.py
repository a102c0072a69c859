"""Failover regions: which subtasks restart together, and which slots an attempt keeps after a failure."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.core.attempt import effects, events
from runtime.core.attempt.failover_regions import (
    FailoverRules,
    RegionCause,
    RestartReason,
    numbered_senders,
    numbering_senders,
    region_cause,
    restart_scope,
)
from runtime.core.attempt.machine import CHANNEL_LOSS_WAIT_MS
from runtime.core.attempt.result import AttemptFailed
from runtime.core.job.graph import EdgeSpec, JobGraph, Partitioning, Role
from runtime.core.job.ids import ChannelId, CheckpointId, OperatorId, Token
from runtime.core.job.messages import CheckpointKind, Records
from runtime.core.job.restart_strategy import ROWS_NOT_REPEATED_CODE
from runtime.core.snapshot.control import LogicFinished, SubtaskEnded
from runtime.core.snapshot.row_numbers import ChannelRows, ProcessedRows, Receipts
from tests.core.attempt.test_machine import Run, of
from tests.core.builders import edge, operator, sink, source

#: The slots of an attempt exchange nothing.
APART = JobGraph(
    (source("a", 2), operator("b", 2), sink("c", 2)),
    (edge("a", "b", Partitioning.FORWARD), edge("b", "c", Partitioning.FORWARD)),
    max_parallelism=8,
)


def graph(*edges: EdgeSpec, parallelism: int = 3, sinks: int = 3) -> JobGraph:
    return JobGraph((source("a", parallelism), operator("b", parallelism), sink("c", sinks)), edges, max_parallelism=8)


def uids(letters: str) -> tuple[OperatorId, ...]:
    return tuple(map(OperatorId, letters))


def rules(joined: str = "", numbered: str = "", passing: str = "") -> FailoverRules:
    """Each letter is an operator."""
    return FailoverRules(uids(joined), uids(numbered), uids(passing))


def restarted(graph: JobGraph, rules: FailoverRules, *failed: int) -> set[str]:
    scope = restart_scope(graph, rules, failed)
    return {str(subtask) for subtask in graph.subtasks if scope.restarts(subtask)}


def names(graph: JobGraph) -> set[str]:
    return {str(subtask) for subtask in graph.subtasks}


@pytest.mark.parametrize("partitioning", [Partitioning.HASH, Partitioning.BROADCAST, Partitioning.REBALANCE])
def test_without_numbers_an_edge_to_other_slots_restarts_all_of_them(partitioning: Partitioning) -> None:
    """S4-44: what a sender repeats, a receiver in another slot has processed."""
    pipeline = graph(edge("a", "b", partitioning), edge("b", "c", Partitioning.FORWARD))
    assert restarted(pipeline, rules(), 1) == names(pipeline)
    assert region_cause(pipeline, rules()) == RegionCause(3, "a", "b", "unnumbered-rows")


def test_slots_that_exchange_nothing_restart_alone() -> None:
    pipeline = graph(edge("a", "b", Partitioning.FORWARD), edge("b", "c", Partitioning.FORWARD))
    assert restarted(pipeline, rules(), 1) == {"a/1", "b/1", "c/1"}
    assert restart_scope(pipeline, rules(), {1}).untouched_slots == {0, 2}
    assert region_cause(pipeline, rules()) == RegionCause(1)
    assert restarted(pipeline, rules("c"), 1) == names(pipeline), "a sink that fences its writers"
    assert region_cause(pipeline, rules("c")) == RegionCause(3, "c", "", "joined")


def test_slots_beyond_the_edges_that_join_restart_alone() -> None:
    """Two jobs in one: a narrow branch with an exchange, and a wide branch without."""
    pipeline = JobGraph(
        (source("a", 2), sink("b", 2), source("c", 4), sink("d", 4)),
        (edge("a", "b", Partitioning.HASH), edge("c", "d", Partitioning.FORWARD)),
        max_parallelism=8,
    )
    assert restarted(pipeline, rules(), 0) == {"a/0", "a/1", "b/0", "b/1", "c/0", "d/0"}
    assert restart_scope(pipeline, rules(), {0}).untouched_slots == {2, 3}
    assert restarted(pipeline, rules(), 3) == {"c/3", "d/3"}
    assert region_cause(pipeline, rules()).slots == 2


# ---------------------------------------------------------------- numbers of rows


BY_KEY = (Partitioning.HASH, Partitioning.CUSTOM)


def counting(*more: EdgeSpec, shuffle: Partitioning = Partitioning.HASH) -> JobGraph:
    """a -> words m -> counts s -> sink c."""
    return JobGraph(
        (source("a", 3), operator("m", 3), operator("s", 3), sink("c", 3)),
        (
            edge("a", "m", Partitioning.FORWARD),
            replace(edge("m", "s", shuffle), keys=("key",) if shuffle in BY_KEY else ()),
            edge("s", "c", Partitioning.FORWARD),
            *more,
        ),
        max_parallelism=8,
    )


def test_subtasks_behind_numbered_rows_keep_their_state() -> None:
    """S4-44, S4-45: all sources restart; the counts and sinks of the other slots drop what is repeated."""
    numbered = rules(numbered="a", passing="m")
    assert restarted(counting(), numbered, 1) == {"a/0", "a/1", "a/2", "m/0", "m/1", "m/2", "s/1", "c/1"}
    scope = restart_scope(counting(), numbered, {1})
    assert scope.kept_slots == {0, 2}
    assert not scope.untouched_slots
    assert region_cause(counting(), numbered) == RegionCause(3, "m", "s", "feeds-restarted", ("s", "c"))


@pytest.mark.parametrize(
    ("pipeline", "given", "reason"),
    [
        (counting(), rules(passing="m"), RestartReason.UNNUMBERED_ROWS),
        (counting(), rules(numbered="a"), RestartReason.UNNUMBERED_ROWS),
        (counting(shuffle=Partitioning.REBALANCE), rules(numbered="a", passing="m"), RestartReason.PARTITIONING),
        (counting(shuffle=Partitioning.CUSTOM), rules(numbered="a", passing="m"), RestartReason.PARTITIONING),
        (counting(shuffle=Partitioning.BROADCAST), rules(numbered="a", passing="m"), RestartReason.PARTITIONING),
        (
            counting(edge("s", "s", Partitioning.FORWARD, input=1, feedback=True)),
            rules(numbered="a", passing="m"),
            RestartReason.LOOP,
        ),
        (counting(), rules("c", numbered="a", passing="m"), RestartReason.JOINED),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_receivers_of_rows_that_are_not_repeated_alike_restart(
    pipeline: JobGraph, given: FailoverRules, reason: RestartReason
) -> None:
    """S4-44: a step without numbers, a rebalance, a loop, a sink with a session."""
    assert restarted(pipeline, given, 1) == names(pipeline)
    assert region_cause(pipeline, given).reason == reason


def test_a_step_with_two_inputs_passes_no_numbers_on() -> None:
    """The order in which its inputs meet is another one after a restart."""
    pipeline = JobGraph(
        (source("a", 2), source("b", 2), operator("u", 2), operator("s", 2), sink("c", 2)),
        (
            edge("a", "u", Partitioning.FORWARD),
            edge("b", "u", Partitioning.FORWARD, input=1),
            edge("u", "s", Partitioning.HASH),
            edge("s", "c", Partitioning.FORWARD),
        ),
        max_parallelism=8,
    )
    assert restarted(pipeline, rules(numbered="ab", passing="u"), 1) == names(pipeline)


def test_an_exchange_between_two_steps_that_could_keep_their_state_restarts() -> None:
    """The slots of both branches open their channels anew, so rows in flight would be lost."""
    pipeline = JobGraph(
        (source("a", 3), sink("b", 3), source("c", 1), operator("s", 1), sink("d", 1)),
        (
            edge("a", "b", Partitioning.HASH),
            edge("c", "s", Partitioning.HASH),
            edge("s", "d", Partitioning.FORWARD),
        ),
        max_parallelism=8,
    )
    assert restarted(pipeline, rules(numbered="a"), 2) == {"a/0", "a/1", "a/2", "b/2", "c/0", "s/0", "d/0"}


def test_a_failed_sender_of_a_narrow_step_restarts_with_its_receivers() -> None:
    """The failed slot has no subtask of the receiver, which would process its rows again."""
    pipeline = JobGraph(
        (source("a", 3), sink("b", 1)),
        (edge("a", "b", Partitioning.HASH),),
        max_parallelism=8,
    )
    assert restarted(pipeline, rules(), 2) == names(pipeline)
    assert restarted(pipeline, rules(numbered="a"), 2) == {"a/0", "a/1", "a/2"}


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[JobGraph, FailoverRules, set[int]]:
    """Random graphs of up to seven operators, forward edges where the parallelism allows, rules and failed slots."""
    count = draw(st.integers(2, 7))
    widths = [draw(st.integers(1, 3)) for _ in range(count)]
    uids = "abcdefg"[:count]
    inputs = {
        n: draw(st.lists(st.integers(0, n - 1), max_size=2, unique=True))
        if n < count - 1
        else [draw(st.integers(0, n - 1))]
        for n in range(1, count)
    }
    fed = {start for starts in inputs.values() for start in starts}
    operators = [
        source(uids[n], widths[n]) if not inputs.get(n) else (operator if n in fed else sink)(uids[n], widths[n])
        for n in range(count)
        if inputs.get(n) or n in fed
    ]
    edges = [
        edge(
            uids[start],
            uids[n],
            draw(
                st.sampled_from(
                    [Partitioning.FORWARD] * (widths[start] == widths[n])
                    + [Partitioning.HASH, Partitioning.REBALANCE, Partitioning.CUSTOM]
                )
            ),
            input=number,
        )
        for n, starts in inputs.items()
        for number, start in enumerate(starts)
    ]
    edges = [replace(each, keys=("key",) if each.partitioning is Partitioning.CUSTOM else each.keys) for each in edges]
    drawn = JobGraph(tuple(operators), tuple(edges), max_parallelism=8)
    sources = "".join(o.uid for o in operators if o.role is Role.SOURCE)
    others = "".join(o.uid for o in operators if o.role is Role.OPERATOR)
    numbered, passing = (draw(st.sets(st.sampled_from(pool))) if pool else set() for pool in (sources, others))
    failed = draw(st.sets(st.integers(0, drawn.parallelism - 1), min_size=1))
    return drawn, rules("", "".join(numbered), "".join(passing)), failed


@settings(max_examples=1_000)
@given(pipelines())
def test_every_channel_into_a_subtask_that_keeps_its_state_is_safe(
    case: tuple[JobGraph, FailoverRules, set[int]],
) -> None:
    """S4-44: upstream of a restarted subtask all restart, and repeated rows have numbers."""
    drawn, given_rules, failed = case
    scope = restart_scope(drawn, given_rules, failed)
    numbered = numbered_senders(drawn, given_rules)
    assert all(scope.restarts(subtask) for subtask in drawn.subtasks if subtask.index in failed)
    reopened = {subtask.index for subtask in drawn.subtasks if scope.restarts(subtask)}
    for channel in drawn.channels():
        sender, receiver = drawn.source(channel), drawn.target(channel)
        partitioning = drawn.edges[channel.edge].partitioning
        if scope.restarts(receiver):
            assert scope.restarts(sender), f"{channel} feeds a restarted subtask"
        elif scope.restarts(sender):
            assert sender.operator in numbered
            assert partitioning not in (Partitioning.REBALANCE, Partitioning.CUSTOM)
            assert receiver.index not in scope.untouched_slots, f"{receiver} tells no numbers of {channel}"
        elif sender.index != receiver.index:
            assert not {sender.index, receiver.index} & reopened, f"rows in flight on {channel} are lost"


@settings(max_examples=1_000)
@given(pipelines())
def test_rows_have_numbers_if_a_receiver_can_keep_its_state(case: tuple[JobGraph, FailoverRules, set[int]]) -> None:
    """S4-44: the rows on every channel from a restarted sender to a survivor have numbers; others cost nothing."""
    drawn, given_rules, failed = case
    numbering = numbering_senders(drawn, given_rules)
    scope = restart_scope(drawn, given_rules, failed)
    kept = drawn.by_uid.keys() - scope.everywhere.keys()
    assert {edge.source for edge in drawn.edges if edge.target in kept} <= numbering.keys() | kept
    scopes = [restart_scope(drawn, given_rules, {slot}).everywhere for slot in range(drawn.parallelism)]
    for source_uid in numbering.values():
        senders = [uid for uid, each in numbering.items() if each == source_uid]
        assert any(
            edge.source in senders and edge.source in everywhere and edge.target not in everywhere
            for edge in drawn.edges
            for everywhere in scopes
        ), f"no receiver of the rows of {source_uid} can keep its state"


def test_a_job_whose_receivers_restart_numbers_no_rows() -> None:
    """S4-44: numbers cost a batch per split, which a job without survivors does not pay."""
    numbered = rules(numbered="a", passing="m")
    assert numbering_senders(counting(), numbered) == {"a": "a", "m": "a"}
    assert not numbering_senders(counting(shuffle=Partitioning.REBALANCE), numbered)
    assert not numbering_senders(counting(), rules("c", numbered="a", passing="m"))
    assert not numbering_senders(APART, rules(numbered="a", passing="b"))


@given(pipelines())
def test_more_failed_slots_restart_no_less(case: tuple[JobGraph, FailoverRules, set[int]]) -> None:
    drawn, given_rules, failed = case
    everything = restarted(drawn, given_rules, *failed)
    assert all(restarted(drawn, given_rules, slot) <= everything for slot in failed)


# ---------------------------------------------------------------- an attempt


def kept(run: Run) -> dict[int, int]:
    result = run.result()
    assert isinstance(result, AttemptFailed)
    return dict(result.kept)


def continue_slot(run: Run, slot: int, since: int) -> list[Any]:
    return run.handle(events.SlotConnected(run.at, slot, f"host:{slot}", "", Token(since)))


def test_a_lost_slot_leaves_the_others_to_the_next_attempt() -> None:
    run = Run(graph=APART)
    run.handle(events.SlotLost(0, 1, "killed"))
    assert kept(run) == {0: 5}


def test_slots_continue_with_the_token_of_their_deployment() -> None:
    """The slot of attempt 3 runs on, and the other one begins; then each may lose the other."""
    for lost, expected in ((0, {1: 5}), (1, {0: 3})):
        run = Run(start=False, graph=APART, kept={0: Token(3)})
        continue_slot(run, 0, since=3)
        assert run.connect(1) == [effects.DeploySlots({0: "host:0", 1: "host:1"}, frozenset({0}))]
        run.deploy(0, 1)
        run.handle(events.SlotLost(0, lost, "killed"))
        assert kept(run) == expected


def test_a_failure_before_the_deployment_keeps_what_was_kept() -> None:
    run = Run(start=False, graph=APART, kept={0: Token(3)})
    run.connect(1)
    run.handle(events.SlotLost(0, 1, "killed"))
    assert kept(run) == {0: 3}


def test_a_kept_slot_that_was_lost_between_two_attempts_begins_anew() -> None:
    run = Run(start=False, graph=APART, kept={0: Token(3)})
    run.connect(0)
    assert run.connect(1) == [effects.DeploySlots({0: "host:0", 1: "host:1"})]


def test_a_unit_of_which_a_slot_was_lost_between_two_attempts_restarts() -> None:
    """The row that a kept slot has sent to a lost one would be lost: the kept slot closes all its subtasks."""
    run = Run(start=False, kept={0: Token(3), 1: Token(3)})
    continue_slot(run, 0, since=3)
    assert run.connect(1) == [effects.RetireSubtasks(frozenset({0}), uids("abc"))]
    (deploy,) = of(effects.DeploySlots, run.handle(events.SlotRetired(0, 0, "host:0 anew")))
    assert deploy.addresses == {0: "host:0 anew", 1: "host:1"}
    assert not deploy.kept
    assert all(deploy.scope.restarts(subtask) for subtask in run.graph.subtasks)


#: a -> m -> s (counts) -> c; the rows of a have numbers.
NUMBERED: dict[str, Any] = {"graph": counting(), "rules": rules(numbered="a", passing="m")}


def test_slots_with_a_subtask_that_keeps_its_state_are_kept() -> None:
    """S4-44: then they close the sources, and the processed rows of the others reach all slots."""
    run = Run(start=False, **NUMBERED)
    run.connect(0, 1, 2)
    run.deploy(0, 1, 2)
    run.handle(events.SlotLost(0, 1, "killed"))
    result = run.result()
    assert isinstance(result, AttemptFailed)
    assert dict(result.kept) == {0: 5, 2: 5}
    assert result.restarted == uids("am")
    run = Run(start=False, kept={0: Token(5), 2: Token(5)}, **NUMBERED)
    continue_slot(run, 0, since=5)
    continue_slot(run, 2, since=5)
    assert run.connect(1) == [effects.RetireSubtasks(frozenset({0, 2}), uids("am"))]
    rows = [ProcessedRows(ChannelId(1, 0, target), {0: ChannelRows({"split": 7}, 4)}) for target in (0, 2)]
    assert run.handle(events.SlotRetired(0, 0, "anew:0", (rows[0],))) == []
    (deploy,) = of(effects.DeploySlots, run.handle(events.SlotRetired(0, 2, "anew:2", (rows[1],))))
    assert deploy.addresses == {0: "anew:0", 1: "host:1", 2: "anew:2"}
    assert deploy.processed == tuple(rows)
    survivors = {str(subtask) for subtask in run.graph.subtasks if not deploy.scope.restarts(subtask)}
    assert survivors == {"s/0", "s/2", "c/0", "c/2"}


def test_a_subtask_that_has_read_the_end_of_an_input_restarts_all() -> None:
    """The end of the data is sent again, and no subtask can take it twice."""
    run = Run(start=False, kept={0: Token(5), 2: Token(5)}, **NUMBERED)
    continue_slot(run, 0, since=5)
    continue_slot(run, 2, since=5)
    run.connect(1)
    run.handle(events.SlotRetired(0, 0, "anew:0", ended="s/0"))
    assert kept(run) == {}


@pytest.mark.parametrize(("restored", "is_kept"), [(6, False), (7, True)])
def test_a_checkpoint_older_than_a_completed_one_restarts_all(restored: int, is_kept: bool) -> None:
    """S4-46: receivers have forgotten the numbers of rows before the checkpoint that has completed."""
    receipts, channel = Receipts(), ChannelId(1, 0, 0)
    for checkpoint in (6, 7):
        receipts.on_records(channel, Records([], 1, 0, "split", checkpoint))
        receipts.on_barrier(channel, CheckpointId(checkpoint))
    receipts.on_completed(CheckpointId(7))
    run = Run(start=False, kept={0: Token(5), 2: Token(5)}, checkpoint=restored, **NUMBERED)
    continue_slot(run, 0, since=5)
    continue_slot(run, 2, since=5)
    run.connect(1)
    run.handle(events.SlotRetired(0, 0, "anew:0", tuple(receipts.processed([channel]))))
    if is_kept:
        assert run.machine.result is None
    else:
        result = run.result()
        assert isinstance(result, AttemptFailed)
        assert (result.code, dict(result.kept)) == (ROWS_NOT_REPEATED_CODE, {})


@pytest.mark.parametrize("cause", ["finished", "not repeated"])
def test_a_failure_keeps_no_slot_in_part_once_a_subtask_has_finished_or_other_rows_were_sent(cause: str) -> None:
    run = Run(start=False, **NUMBERED)
    run.connect(0, 1, 2)
    run.deploy(0, 1, 2)
    if cause == "finished":
        run.handle(events.ReportReceived(0, run.graph.subtasks[0], LogicFinished()))
    run.fail(slot=1, code=ROWS_NOT_REPEATED_CODE if cause == "not repeated" else "")
    assert kept(run) == {}


def test_a_broken_channel_fails_the_slot_at_its_other_end_unless_another_failure_explains_it() -> None:
    """Slots notice the death of a peer as fast as the master does."""
    run = Run(start=False, **NUMBERED)
    run.connect(0, 1, 2)
    run.deploy(0, 1, 2)
    run.handle(events.ChannelLost(0, 0, 1, "channel 1:0>1 broke"))
    run.tick(CHANNEL_LOSS_WAIT_MS)
    assert run.machine.result is None
    run.tick(CHANNEL_LOSS_WAIT_MS + 1)
    result = run.result()
    assert isinstance(result, AttemptFailed)
    assert (result.slot, result.detail, set(result.kept)) == (1, "channel 1:0>1 broke", {0, 2})


@pytest.mark.parametrize(
    "fields", [{}, {"slot": 1, "is_final": True}, {"slot": 1, "damaged_file": "chk-1-5/a"}, {"slot": None}]
)
def test_a_failure_that_concerns_all_slots_keeps_none(fields: dict[str, Any]) -> None:
    """An older checkpoint would take back what the other slots have committed."""
    run = Run(graph=APART)
    run.fail(**fields)
    assert kept(run) == {}


@pytest.mark.parametrize("ending", ["stop", "drain", "all finished", "one ended"])
def test_a_failure_while_the_job_ends_keeps_none(ending: str) -> None:
    run = Run(graph=APART)
    first = run.graph.subtasks[0]
    match ending:
        case "all finished":
            run.report(LogicFinished())
        case "one ended":
            run.handle(events.ReportReceived(0, first, LogicFinished()))
            run.handle(events.ReportReceived(0, first, SubtaskEnded()))
        case _:
            run.take(("1", CheckpointKind(ending)))
    run.handle(events.SlotLost(0, 1, "killed"))
    assert kept(run) == {}
