"""The rule on a run that starts, stops, drains or is cancelled for far longer than its job usually takes."""

from collections.abc import Iterator
from typing import Final

from console import formats
from console.health.facts import RunFacts, StateChange
from console.health.findings import Finding, names
from console.metrics.live import SlotLive
from runtime.core.job.lifecycle import RunState
from runtime.core.job.messages import CheckpointKind

MIN_SLOW_MS: Final = 300_000.0
SLOW_TIMES: Final = 3.0  #: the longest of the last changes of this kind
_DEPLOYING: Final = "deploying"  #: `runtime.io.control.messages.SubtaskStatus`
_NOT_DEPLOYED: Final = "Not all slots have deployed their subtasks."
_NOUNS: Final = {
    RunState.STARTING: "start",
    RunState.STOPPING: "stop",
    RunState.DRAINING: "drain",
    RunState.CANCELLING: "cancel",
}


def slow_change(facts: RunFacts) -> Iterator[Finding]:
    """A run that hangs between two states. After the end of all subtasks `slow-end` names the cause."""
    change = facts.change
    if change is None or (facts.live.ending and facts.state is not RunState.CANCELLING):
        return
    took_ms = _took_ms(facts, change)
    if took_ms < max(MIN_SLOW_MS, SLOW_TIMES * (change.longest_ms or 0.0)):
        return
    noun = _NOUNS[facts.state]
    longest = f", the longest before {formats.duration(change.longest_ms)}" if change.longest_ms else ""
    yield Finding(
        sentence=f"The {noun} of the run has taken {formats.duration(took_ms)}{longest}. {_cause(facts, change)}"
    )


def _took_ms(facts: RunFacts, change: StateChange) -> float:
    """Time in the state, without a wait for slots before a start: its last report, without numbers, is its end."""
    live = facts.live
    if facts.state is RunState.STARTING and live.at is not None and live.at >= change.since:
        return (live.deploying_ms or 0.0) + facts.ms_since(live.at)
    return facts.ms_since(change.since)


def _cause(facts: RunFacts, change: StateChange) -> str:
    """A sentence on what the run waits for, by the newest report."""
    live = facts.live
    is_known = live.at is not None and live.at >= change.since
    if facts.state is RunState.CANCELLING:
        return "It waits until its slots have ended."
    if facts.state is RunState.STARTING:
        if not is_known:
            return "The job master has not begun to deploy the subtasks: it reads the snapshot or lists its inputs."
        if live.deploying_ms is None:
            return "Enough slots are available, but their processes have not all started."
        if len(live.slots) < (live.parallelism or 0):
            return f"{len(live.slots)} of {live.parallelism} slots have connected."
        if operators := [facts.operator(uid) for uid, each in live.operators.items() if each.state == _DEPLOYING]:
            return f"These operators have not opened and restored their state: {names(operators)}."
        hanging = [_slot_name(slot) for slot in live.slots if slot.index in live.undeployed_slots]
        return f"These slots have not deployed their subtasks: {names(hanging)}." if hanging else _NOT_DEPLOYED
    pending = live.checkpoint if is_known else None
    if pending is not None and pending.kind != CheckpointKind.CHECKPOINT:
        return f"Its savepoint waits: {pending.acknowledged} of {pending.subtasks} subtasks have acknowledged."
    return "No savepoint is in progress: it has not begun, or it has completed and a slot has not ended."


def _slot_name(slot: SlotLive) -> str:
    return f"{slot.index} on {slot.host}" if slot.host else str(slot.index)
