"""Rules on the flow of records: backpressure and its root, lag, skew, silent inputs, watermarks, growth of state.

Backpressure spreads upstream from its root. The root is the most downstream operator that is not backpressured while
an input of it is: all operators that wait are upstream of it (as in the backpressure tab of Flink's web interface).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from console import formats
from console.health.facts import OperatorFacts, RunFacts, SubtaskFacts
from console.health.findings import Finding, SilentInput, names
from runtime.core.job.graph import Role
from runtime.core.job.lifecycle import RunState
from runtime.core.subtask.watermark_alignment import WAITED_COUNTER

BACKPRESSURE: Final = "backpressure"
FALLS_BEHIND: Final = "falls-behind"
SATURATED: Final = "saturated"
SKEW: Final = "skew"
SILENT: Final = "input-silent"
SILENCE_STATES: Final = frozenset({RunState.RUNNING})  #: a run that ends reads no more
MIN_FLOW_S: Final = 14.0  #: three intervals of the history, so that a short burst is no finding
_BLOCKS: Final = 0.5  #: mean fraction of time that the subtasks of an operator wait for receivers
_STILL_BLOCKS: Final = 0.3  #: the same while the rule is lit
_BLOCKED: Final = 0.8  #: fraction of time that a single subtask waits for the same subtask of its receiver
_FREE: Final = 0.3  #: a subtask above waits for receivers itself
MIN_BUSY: Final = 0.8  #: an operator below is not the bottleneck itself
_FULL: Final = 0.8  #: fraction of the time of a slot that its subtasks take; the loop of the slot needs some too
_KEEPS_UP: Final = 0.9  #: event time that advances less fast than this against the clock falls behind it
CATCH_UP: Final = 1.5  #: event time that advances this much faster than the clock shrinks the lag
STILL_S: Final = 60.0
_MOVES_S: Final = 20.0  #: a watermark that has changed since then advances
MIN_LAG: Final = timedelta(minutes=5)  #: behind the clock; less is disorder and the length of windows
MIN_NAMED_LAG: Final = timedelta(seconds=10)  #: less is disorder, or the usual way of the records
LOST_LAG: Final = timedelta(minutes=3)  #: of a quarter of an hour: event time advances at most 0.8 times as fast
MIN_SILENCE: Final = timedelta(minutes=15)  #: by the history of a source
MIN_SILENT: Final = timedelta(seconds=10)
_STEADY_QUARTERS: Final = 4  #: an hour
_STEADY_SHARE: Final = 0.9
_OF_EVENT_TIME: Final = ("windows", "panes", "sessions", "joined")  #: open results that only a watermark ends
_MIN_GROWTH_BYTES: Final = 64 * 1024 * 1024  #: per hour


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The root of backpressure, and the operators that wait for it, those next to it first."""

    root: OperatorFacts
    waiting: tuple[OperatorFacts, ...]

    @property
    def clause(self) -> str:
        """`which is 100 % busy; 3 operators wait for it`"""
        only = "" if self.root.busy >= MIN_BUSY else "only "
        number = len(self.waiting)
        waiters = f"{self.waiting[0]} waits" if number == 1 else f"{number} operators wait"
        return f"which is {only}{formats.percent(self.root.busy)} busy; {waiters} for it"


@dataclass(frozen=True, slots=True)
class SlowSubtask:
    """A subtask of `root` that is busy, and the subtask of `sender` with the same index that waits for it."""

    root: OperatorFacts
    sender: OperatorFacts
    index: int
    busy: float
    blocked: float

    @property
    def others_wait(self) -> formats.Quantity:
        shares = [each.backpressured for each in self.sender.subtasks if each.index != self.index]
        return formats.percent(sum(shares) / max(len(shares), 1))

    @property
    def clause(self) -> str:
        return f"subtask {self.index} of {self.root}, which is {formats.percent(self.busy)} busy"


@dataclass(frozen=True, slots=True)
class FullSlot:
    """A slot whose operators take nearly all of its time, and the operator that takes most of it."""

    index: int
    load: float
    operator: OperatorFacts
    busy: float

    @property
    def clause(self) -> str:
        return (
            f"The operators of slot {self.index} take {formats.percent(self.load)} of its time, {self.operator} most, "
            f"{formats.percent(self.busy)}"
        )


def slow_subtask(facts: RunFacts) -> SlowSubtask | None:
    """A single slow subtask behind a forward edge, as on a slow host. It blocks its own sender, few of all subtasks."""
    if facts.flow_s < MIN_FLOW_S:
        return None
    for root in list(facts.operators.values())[::-1]:
        busy = {s.index: s.busy for s in root.subtasks if s.busy >= MIN_BUSY and s.backpressured < _FREE}
        for sender in (facts.operators[uid] for uid in root.forward_inputs if busy and uid in facts.operators):
            blocked = {s.index: s.backpressured for s in sender.subtasks}
            for index, share in busy.items():
                waits = facts.exceeds(BACKPRESSURE, blocked.get(index, 0.0), _BLOCKED, 0.6)
                if waits and not root.finished and not sender.finished:
                    return SlowSubtask(root, sender, index, share, blocked[index])
    return None


def bottleneck(facts: RunFacts) -> Bottleneck | None:
    """The root of backpressure; None while no operator waits for a receiver for much of its time."""
    if facts.flow_s < MIN_FLOW_S:
        return None
    blocked = {
        uid for uid, operator in facts.operators.items() if not operator.finished and _is_blocked(facts, operator)
    }
    downstream_first = list(facts.operators.values())[::-1]
    for operator in downstream_first:
        uid = operator.uid
        if uid not in blocked and not operator.finished and blocked & set(operator.inputs):
            upstream = _upstream(facts.operators, uid)
            return Bottleneck(operator, tuple(other for other in downstream_first if other.uid in blocked & upstream))
    return None


def _is_blocked(facts: RunFacts, operator: OperatorFacts) -> bool:
    """Whether the operator waits for a receiver for much of its time.

    Above the lower limit of a lit rule, an operator that works for longer than it waits is slow itself: else the
    finding would move from it to its receiver.
    """
    waits = operator.backpressured
    return waits >= _BLOCKS or (BACKPRESSURE in facts.lit and waits >= _STILL_BLOCKS and waits >= operator.busy)


def catch_up_speed(facts: RunFacts) -> float | None:
    """Seconds of event time per second that the slowest source advances; None without event time."""
    sources = [o for o in facts.operators.values() if o.role is Role.SOURCE and not o.finished]
    return _slowest_advance(facts, [subtask for source in sources for subtask in source.subtasks])


def _slowest_advance(facts: RunFacts, subtasks: Sequence[SubtaskFacts]) -> float | None:
    advances = [s.advance_ms for s in subtasks if s.watermark is not None and not s.idle]
    return min(advances) / 1000 / facts.watermark_s if advances and facts.watermark_s > 0 else None


def backpressure(facts: RunFacts) -> Iterator[Finding]:
    """Backpressure that hurts: not of a bounded job, nor of a job that catches up, which run at full speed."""
    if _is_full_speed(facts):
        return
    root = bottleneck(facts)
    if root is None:
        if slow := slow_subtask(facts):
            yield Finding(
                sentence=f"Backpressure from {slow.clause}; subtask {slow.index} of {slow.sender} waits for it "
                f"{formats.percent(slow.blocked)} of the time, the other subtasks {slow.others_wait} on average.",
                operator=slow.root.uid,
                waiting=(slow.sender.uid,),
            )
        return
    most = max(operator.backpressured for operator in root.waiting)
    yield Finding(
        sentence=f"Backpressure from {root.root}, {root.clause} up to {formats.percent(most)} of the time.",
        operator=root.root.uid,
        waiting=tuple(operator.uid for operator in root.waiting),
    )


def _is_full_speed(facts: RunFacts) -> bool:
    sources = [o for o in facts.operators.values() if o.role is Role.SOURCE and not o.finished]
    return all(source.bounded for source in sources) or (catch_up_speed(facts) or 0.0) >= CATCH_UP


def saturated(facts: RunFacts) -> Iterator[Finding]:
    """An operator that takes most of the time of its slot, while event time falls behind or fewer records are read.

    The subtasks of a slot, which have the same index, share a thread. So those upstream of a slow one find no time to
    run: nothing waits for a receiver, and there is no backpressure.
    """
    if _is_full_speed(facts) or bottleneck(facts) or slow_subtask(facts):
        return
    slot = full_slot(facts)
    if slot and slot.operator.role is not Role.SOURCE and (effect := _slowness(facts)):
        yield Finding(sentence=f"{slot.clause}: {effect}.", operator=slot.operator.uid)


def full_slot(facts: RunFacts) -> FullSlot | None:
    """The slot with the highest load, if its operators take nearly all of its time."""
    loads = _slot_loads(facts)
    if facts.flow_s < MIN_FLOW_S or not loads:
        return None
    index = max(loads, key=lambda slot: sum(loads[slot].values()))
    load = sum(loads[index].values())
    uid, busy = max(loads[index].items(), key=lambda share: share[1])
    if busy < _FULL / 2 or not facts.exceeds(SATURATED, load, _FULL, 0.7):
        return None
    return FullSlot(index, min(load, 1.0), facts.operators[uid], busy)


def _slot_loads(facts: RunFacts) -> dict[int, dict[str, float]]:
    """By slot, the fraction of its time that each operator takes."""
    loads: dict[int, dict[str, float]] = {}
    for uid, operator in facts.operators.items():
        for subtask in operator.subtasks if not operator.finished else ():
            loads.setdefault(subtask.index, {})[uid] = subtask.busy
    return loads


def _slowness(facts: RunFacts) -> str:
    """`event time advances 0.4 s per second`, or what a source reads of its usual records; "" if the job keeps up.

    A subtask without records is silent, which has its own rule, and its event time stands still for no load.
    """
    sources = _unbounded_sources(facts)
    speed = _slowest_advance(facts, [s for source in sources for s in source.subtasks if s.records_per_s > 0])
    if speed is not None and speed < _KEEPS_UP:
        return f"event time advances {speed:.1f} s per second"
    return next(filter(None, (_lost_records(facts, source) for source in sources)), "")


def falls_behind(facts: RunFacts) -> Iterator[Finding]:
    """A source that reads too slowly, because it or a receiver is at its limit.

    Event time passes faster than the source reads, or the source reads at most half of its usual records.
    """
    if facts.flow_s < MIN_FLOW_S:
        return
    for source in _unbounded_sources(facts):
        load = max((s.busy + s.backpressured for s in source.subtasks), default=0.0)
        if source.records_per_s <= 0 or load < MIN_BUSY:
            continue
        root, slow = bottleneck(facts), slow_subtask(facts)
        if root:
            cause = f"it waits for {root.root}, which is {formats.percent(root.root.busy)} busy"
        elif slow:
            cause = f"it waits for {slow.clause}"
        else:
            cause = f"it is {formats.percent(source.busy)} busy"
        lost = _lost_records(facts, source) if _mean_load(source) >= MIN_BUSY else ""
        if behind := lost or _lost_time(source):
            blamed = root.root if root else slow.root if slow else source
            yield Finding(sentence=f"{source} falls behind: {behind}; {cause}.", operator=blamed.uid)


def _mean_load(source: OperatorFacts) -> float:
    """Mean load of the subtasks that read records. A single busy one does not explain a loss of half of all records."""
    loads = [subtask.busy + subtask.backpressured for subtask in source.subtasks if subtask.records_per_s > 0]
    return sum(loads) / max(len(loads), 1)


def _lost_records(facts: RunFacts, source: OperatorFacts) -> str:
    """`it reads 21 k/s of its usual 84 k/s`; "" if it reads more than half of them, or catches up all the same."""
    usual = source.usual_per_s
    if usual <= 0 or (catch_up_speed(facts) or 0.0) >= CATCH_UP:
        return ""
    if not facts.exceeds(FALLS_BEHIND, 1 - source.records_per_s / usual, 0.5, 0.3):
        return ""
    text = f"it reads {formats.rate(source.records_per_s)} of its usual {formats.rate(usual)}"
    ms, behind = (facts.behind_newest_ms, "the newest record") if facts.lag_ms is None else (facts.lag_ms, "the clock")
    if facts.old_since is None and ms is not None and timedelta(milliseconds=ms) >= MIN_NAMED_LAG:
        text += f", and the watermark is {formats.duration(ms)} behind {behind}"
    return text


def _lost_time(source: OperatorFacts) -> str:
    """`its event time is 2 h behind the clock, …`; "" if event time passes fast enough."""
    before_ms, now_ms = source.lag_ms
    if before_ms is None or now_ms is None or timedelta(milliseconds=now_ms) < MIN_LAG:
        return ""
    if timedelta(milliseconds=now_ms - before_ms) < LOST_LAG:
        return ""
    growth = formats.duration(now_ms - before_ms)
    return f"its event time is {formats.duration(now_ms)} behind the clock, {growth} more than 15 min ago"


def input_silent(facts: RunFacts) -> Iterator[Finding]:
    """A source without records for longer than the limit of the job; by default, if it has sent records all day.

    Without a limit, sources that often pause, or were silent at the same time a day or a week ago, have no such
    finding.
    """
    if facts.flow_s < MIN_FLOW_S:
        return
    limit = timedelta(seconds=facts.max_silence_s) or MIN_SILENCE
    for source, since in _silences(facts):
        silence = (facts.old_since or facts.now) - since
        if silence < limit or not (facts.max_silence_s or _is_unusual(source)):
            continue
        if facts.old_since:
            sends = f"{source} had sent no records for {formats.duration(silence / timedelta(milliseconds=1))}"
        else:
            sends = f"{source} has sent no records for {facts.age(since)}"
        if facts.max_silence_s:
            sends += f"; the limit of the job is {formats.duration(facts.max_silence_s * 1000)}"
        elif source.sent.per_s:
            sends += f"; before, it sent {formats.rate(source.sent.per_s)}"
        yield Finding(sentence=f"{sends}.", operator=source.uid, since=since)


def _is_unusual(source: OperatorFacts) -> bool:
    """Whether the source has sent records all day, or had before a silence that is a finding already."""
    sent = source.sent
    is_steady = sent.with_records >= max(_STEADY_QUARTERS, _STEADY_SHARE * sent.quarters)
    return SILENT in source.lit or (is_steady and not sent.was_silent_before)


def _silences(facts: RunFacts) -> list[tuple[OperatorFacts, datetime]]:
    """Unbounded sources that may read and send no records, each with the time since when."""
    if facts.state not in SILENCE_STATES or facts.live.sources_paused or facts.live.ending:
        return []
    return [
        (source, source.silent_since)
        for source in _unbounded_sources(facts)
        if source.silent_since and source.backpressured < _STILL_BLOCKS and not _is_held(facts, source)
    ]


def _is_held(facts: RunFacts, source: OperatorFacts) -> bool:
    """Whether watermark alignment may hold the source: another one is behind it, and it has waited before."""
    live = facts.live.operators.get(source.uid)
    if live is None or not live.counters.get(WAITED_COUNTER):
        return False
    sources = [o for o in facts.operators.values() if o.role is Role.SOURCE and not o.finished and o is not source]
    watermark = _watermark(source)
    behind = [other for other in sources if _moves(other) and _meet(facts, source, other)]
    times = [time for other in behind if (time := _watermark(other)) is not None]
    return watermark is not None and any(time < watermark for time in times)


def _watermark(source: OperatorFacts) -> int | None:
    return min((each.watermark for each in source.subtasks if each.watermark is not None), default=None)


def _unbounded_sources(facts: RunFacts) -> list[OperatorFacts]:
    sources = [o for o in facts.operators.values() if o.role is Role.SOURCE]
    return [source for source in sources if not source.finished and not source.bounded and source.subtasks]


def skew(facts: RunFacts) -> Iterator[Finding]:
    """A subtask that is busy with most records while its siblings are not. Even records give each the mean."""
    if facts.flow_s < MIN_FLOW_S:
        return
    for operator in list(facts.operators.values())[::-1]:
        subtasks, ratio = operator.subtasks, operator.skew
        if operator.finished or operator.role is Role.SOURCE or ratio is None:
            continue
        top = max(subtasks, key=lambda subtask: subtask.records_per_s)
        loads = [subtask.busy for subtask in subtasks if subtask is not top]
        limit = min(4.0, 1 + (len(subtasks) - 1) / 2)
        is_loaded = facts.exceeds(SKEW, top.busy, 0.5, 0.4) and top.busy >= 2 * sum(loads) / len(loads)
        if is_loaded and facts.exceeds(SKEW, ratio, limit, 0.85 * limit):
            share = formats.percent(ratio / len(subtasks))
            mean = formats.percent(sum(loads) / len(loads))
            yield Finding(
                sentence=f"Skew: subtask {top.index} of {operator} gets {share} of the records of "
                f"{len(subtasks)} subtasks. It is {formats.percent(top.busy)} busy, the others {mean} on average.",
                operator=operator.uid,
            )
            return


def silent_inputs(facts: RunFacts) -> tuple[SilentInput, ...]:
    """Unbounded sources that send no records, from two intervals on: a fact, which the rule may not find worth a line.

    The ages of old samples are no facts.
    """
    if facts.old_since:
        return ()
    return tuple(
        SilentInput(source.uid, str(source), since)
        for source, since in _silences(facts)
        if facts.now - since >= MIN_SILENT
    )


def watermark_stands(facts: RunFacts) -> Iterator[Finding]:
    """Source subtasks that hold event time back: not idle, and their watermark stands still.

    Watermarks of other operators do not count: the edge into a window forwards a watermark only at the end of a pane.
    """
    sources = [o for o in facts.operators.values() if o.role is Role.SOURCE and not o.finished]
    for source in sources:
        subtasks = [subtask for subtask in source.subtasks if _is_still(source, subtask)]
        if not subtasks:
            if going := _waiting_for_first(facts, sources, source):
                still = formats.duration(min(subtask.still_s for subtask in source.subtasks) * 1000)
                text = f"Event time has not begun: {source} has sent no records for at least {still}, while {going} on."
                yield Finding(sentence=text, operator=source.uid)
            continue
        first = min(subtasks, key=lambda subtask: (subtask.watermark is not None, subtask.watermark or 0))
        going = _going(facts, sources, source)
        name = str(source) if len(source.subtasks) == 1 else f"subtask {first.index} of {source}"
        still = formats.duration(first.still_s * 1000)
        least = "at least " if first.still_s >= facts.watermark_s else ""
        if first.records_per_s > 0:
            text = (
                f"The watermark of {name} has stood still for {least}{still}, although it reads "
                f"{formats.rate(first.records_per_s)}: a partition without records holds it, or event times do not "
                "advance."
            )
        elif going:
            text = (
                f"Event time stands still: {name} has sent no records for {least}{still} and holds the watermark, "
                f"while {going} on."
            )
        else:
            continue
        yield Finding(sentence=text, operator=source.uid)


def _is_still(source: OperatorFacts, subtask: SubtaskFacts) -> bool:
    """Whether the subtask holds its watermark. Without one, a sibling shows that the source has event time."""
    has_time = any(sibling.watermark is not None for sibling in source.subtasks)
    return has_time and not subtask.idle and subtask.still_s >= STILL_S


def _going(facts: RunFacts, sources: Sequence[OperatorFacts], source: OperatorFacts) -> str:
    """The inputs whose watermark advances while that of `source` stands still, with their verb; "" if there is none."""
    if _moves(source):
        return "its other subtasks go"
    moving = [other for other in sources if other is not source and _moves(other) and _meet(facts, source, other)]
    return f"{moving[0]} goes" if moving else ""


def _waiting_for_first(facts: RunFacts, sources: Sequence[OperatorFacts], silent: OperatorFacts) -> str:
    """As `_going`, for a source without a watermark so far. "" unless an operator with open results waits for it.

    Only open results show that event time matters: neither a union nor a sink waits for a watermark.
    """
    is_silent = all(s.watermark is None and not s.idle and s.still_s >= STILL_S for s in silent.subtasks)
    if not silent.subtasks or not is_silent or silent.records_per_s > 0:
        return ""
    waiting = [
        uid
        for uid, operator in facts.operators.items()
        if operator.subtasks
        and all(subtask.watermark is None for subtask in operator.subtasks)
        and uid in facts.live.operators
        and any(facts.live.operators[uid].open_results.get(kind) for kind in _OF_EVENT_TIME)
    ]
    moving = [other for other in sources if _moves(other)]
    together = [o for o in moving for uid in waiting if {silent.uid, o.uid} <= _upstream(facts.operators, uid)]
    return f"{together[0]} goes" if together else ""


def _moves(source: OperatorFacts) -> bool:
    return any(subtask.watermark is not None and subtask.still_s < _MOVES_S for subtask in source.subtasks)


def _meet(facts: RunFacts, left: OperatorFacts, right: OperatorFacts) -> bool:
    """Whether an operator is downstream of both."""
    return any({left.uid, right.uid} <= _upstream(facts.operators, uid) for uid in facts.operators)


def state_growth(facts: RunFacts) -> Iterator[Finding]:
    """State that grows by a third or more in each of two hours: it has no bound, or its timers do not fire."""
    for operator in facts.operators.values():
        oldest, before, now = operator.state_bytes
        if not oldest or not before or not now:
            continue
        grown = min(before - oldest, now - before)
        if grown >= _MIN_GROWTH_BYTES and before >= oldest * 4 / 3 and now >= before * 4 / 3:
            sizes = f"{formats.size(oldest)}, {formats.size(before)} and {formats.size(now)}"
            yield Finding(
                sentence=f"The state of {operator} grows: {sizes} within two hours, "
                f"{formats.size(now - before)} in the last hour.",
                operator=operator.uid,
            )


def _upstream(operators: Mapping[str, OperatorFacts], uid: str) -> set[str]:
    """All operators from which records reach `uid`."""
    uids: set[str] = set()
    pending = list(operators[uid].inputs)
    while pending:
        other = pending.pop()
        if other not in uids and other in operators:
            uids.add(other)
            pending += operators[other].inputs
    return uids


def rows_set_aside(facts: RunFacts) -> Iterator[Finding]:
    """Rows that became dead letters in this attempt, by operator."""
    for uid, errors in facts.live.rows_set_aside.items():
        rows, kinds = sum(errors.values()), names([f"{error} ({formats.count(n)})" for error, n in errors.items()])
        yield Finding(
            sentence=f"Rows that {facts.operator(uid)} has set aside in this attempt: {formats.count(rows)}. "
            f"Errors: {kinds}. The rest of the stream goes on.",
            operator=uid,
        )
