"""The sentence that explains a checkpoint: which subtask was slow, in which phase, and which operator caused it.

A barrier travels with the records. A subtask that waits for its barrier is therefore rarely the cause. The search
follows the latest barrier upstream, to the operator in whose input the barrier waited longest, and along backpressure
downstream, to the busy operator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from console import formats
from console.checkpoints.lanes import Lane
from console.checkpoints.models import ABORTED, SUPERSEDED, Status
from console.jobs.operator_names import operator_names, quoted
from runtime.core.checkpoint.missing_subtasks import MissingSubtasks, missing_subtasks, operators_behind
from runtime.core.snapshot.failure_reason import FailureReason

MIN_CAUSE: Final = 0.5  #: minimum share of time that an operator was busy or backpressured to be named as a cause
#: Shares of time (busy, backpressured) of each operator while the checkpoint was taken.
Load = Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """A checkpoint and its surroundings. `took_ms`: from the trigger to the end, or until now if it is in progress."""

    outcome: str
    reason: str
    detail: str
    took_ms: float
    lanes: Sequence[Lane]
    graph: Mapping[str, Any]
    load: Load


def explain(facts: Circumstances) -> str:
    """The explanation in one to three sentences. "" if the row has no acknowledgements."""
    if not facts.lanes:
        return ""
    search = _Search(facts)
    match facts.outcome:
        case Status.COMPLETED:
            return search.completion()
        case Status.IN_PROGRESS:
            return search.progress()
        case _ if facts.outcome == ABORTED:
            return f"Aborted {search.took} after its trigger: {search.why_ended}. {search.count} No subtask failed it."
        case _ if facts.outcome == SUPERSEDED:
            return f"Not needed any more {search.took} after its trigger: {search.why_ended}. {search.count}"
        case _:
            return search.failure()


class _Search:
    def __init__(self, facts: Circumstances) -> None:
        self._facts = facts
        self._names = operator_names(facts.graph)
        self._upstream: dict[str, list[str]] = {}
        self._downstream: dict[str, list[str]] = {}
        for edge in facts.graph.get("edges", ()):
            if not edge["feedback"]:
                self._upstream.setdefault(edge["target"], []).append(edge["source"])
                self._downstream.setdefault(edge["source"], []).append(edge["target"])
        self._arrived = [lane for lane in facts.lanes if lane.at_ms is not None]
        self._missing = [lane for lane in facts.lanes if lane.at_ms is None]

    @property
    def took(self) -> str:
        return _time(self._facts.took_ms)

    @property
    def count(self) -> str:
        return f"{len(self._arrived)} of {len(self._facts.lanes)} subtasks had acknowledged."

    @property
    def why_ended(self) -> str:
        return self._facts.detail.rstrip(".") or self._facts.reason.replace("_", " ")

    # ------------------------------------------------------------ by outcome

    def completion(self) -> str:
        last = self._last()
        rest_ms = self._facts.took_ms - (last.at_ms or 0)
        if rest_ms > (last.at_ms or 0):
            arrivals = f"All {len(self._arrived)} subtasks had acknowledged {_time(last.at_ms)} after the trigger"
            return f"{arrivals}. To store and record the manifest then took {_time(rest_ms)}."
        return f"{self._subtask(last)} acknowledged last, {_time(last.at_ms)} after the trigger: {self._slow(last)}."

    def progress(self) -> str:
        if not self._missing:
            return f"All {len(self._arrived)} subtasks have acknowledged. The manifest is being stored."
        return (
            f"{len(self._arrived)} of {len(self._facts.lanes)} subtasks have acknowledged, {self.took} after the "
            f"trigger. {self._missing_names('is awaited', 'are awaited')}{self._why_missing('is')}."
        )

    def failure(self) -> str:
        if self._facts.reason != FailureReason.EXPIRED or not self._missing:
            return f"Failed {self.took} after its trigger: {self.why_ended}. {self.count}"
        none = "had not acknowledged when the checkpoint expired"
        arrivals = f"{len(self._arrived)} of {len(self._facts.lanes)} subtasks acknowledged"
        if self._arrived:
            arrivals += f", {self._subtask(self._last(), start=False)} last, after {_time(self._last().at_ms)}"
        return f"{self._missing_names(none, none)} after {self.took}{self._why_missing('was')}. {arrivals}."

    # ------------------------------------------------------------ causes

    def _last(self) -> Lane:
        return max(self._arrived, key=lambda lane: lane.at_ms or 0)

    def _slow(self, lane: Lane) -> str:
        """The longest phase of `lane`, and its cause."""
        times = {
            "barriers": lane.barriers_ms,
            "pre_barrier": lane.phase_ms("pre_barrier"),
            "sync": lane.phase_ms("sync"),
            "async": lane.phase_ms("async"),
        }
        times["report"] = (lane.at_ms or 0) - sum(times.values())
        phase = max(times, key=lambda name: times[name])
        ms = _time(times[phase])
        match phase:
            case "barriers":
                return self._late_barrier(lane)
            case "pre_barrier":
                return f"emitting its buffered rows before the barrier took {ms}"
            case "sync":
                return f"copying its state took {ms}, during which it processed no records"
            case "async":
                return f"writing {formats.size(lane.written_bytes)} to the checkpoint storage took {ms}"
            case _:
                return f"its acknowledgement reached the job master {ms} after its snapshot was stored"

    def _late_barrier(self, lane: Lane) -> str:
        first_ms, aligned_ms = lane.phase_ms("start_delay"), lane.phase_ms("alignment")
        cause = self._origin(lane)
        since = self._because(cause.operator, "was")
        if not self._upstream.get(lane.operator):
            return f"its trigger waited {_time(first_ms)}{since}"
        if aligned_ms > first_ms:
            arrived = (
                f"its first barrier arrived after {_time(first_ms)}, and the barrier of its last input "
                f"{_time(aligned_ms)} later"
            )
        else:
            arrived = f"its barrier arrived after {_time(lane.barriers_ms)}"
        if cause is lane:
            return arrived + since
        left = f"its barrier left {self._subtask(cause, start=False)} only {_time(cause.forwarded_ms)}"
        return f"{left} after the trigger{since}"

    def _origin(self, lane: Lane) -> Lane:
        """The lane in whose input the latest barrier waited longest, upstream of `lane` or `lane` itself."""
        operators = {lane.operator}
        while True:
            before = [
                other
                for other in self._arrived
                if other.operator in self._upstream.get(lane.operator, ()) and other.operator not in operators
            ]
            latest = max(before, key=lambda other: other.forwarded_ms, default=None)
            if latest is None or latest.forwarded_ms < lane.barriers_ms - latest.forwarded_ms:
                return lane
            lane = latest
            operators.add(lane.operator)

    @cached_property
    def _late(self) -> MissingSubtasks:
        missing = [(lane.operator, lane.index) for lane in self._missing]
        return missing_subtasks(missing, self._downstream, self._name)

    def _missing_names(self, is_one: str, are_more: str) -> str:
        text = f"{self._late}," if self._late.behind else str(self._late)
        return f"{text[0].upper()}{text[1:]} {is_one if len(self._missing) == 1 else are_more}"

    def _why_missing(self, verb: str) -> str:
        return next(filter(None, (self._because(uid, verb) for uid in self._late.operators)), "")

    def _because(self, uid: str, verb: str) -> str:
        """`, since … was 100 % busy`; "" if the operator was neither busy nor backpressured."""
        busy, blocked = self._facts.load.get(uid, (0.0, 0.0))
        if blocked >= MIN_CAUSE and blocked >= busy:
            root = self._busiest_behind(uid)
            share = formats.percent(self._facts.load[root][0]) if root else ""
            behind = f" by {self._name(root)}, which {verb} {share} busy" if root else ""
            return f", since {self._name(uid)} {verb} {formats.percent(blocked)} backpressured{behind}"
        return f", since {self._name(uid)} {verb} {formats.percent(busy)} busy" if busy >= MIN_CAUSE else ""

    def _busiest_behind(self, uid: str) -> str | None:
        behind, load = operators_behind([uid], self._downstream), self._facts.load
        busy = {other: load[other][0] for other in behind if other in load}
        root = max(busy, key=lambda other: busy[other], default=None)
        return root if root is not None and busy[root] >= MIN_CAUSE else None

    # ------------------------------------------------------------ names

    def _name(self, uid: str) -> str:
        return quoted(self._names.get(uid, uid))

    def _subtask(self, lane: Lane, *, start: bool = True) -> str:
        return f"{'S' if start else 's'}ubtask {lane.index} of {self._name(lane.operator)}"


def _time(ms: float | None) -> str:
    return str(formats.duration(ms))
