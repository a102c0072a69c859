"""Comparison of two checkpoints of a job by operator, with a sentence that names the operator behind the difference.

A barrier that waits in the input of an operator delays every operator downstream. Each operator is therefore charged
with its own wait only: the time from the last barrier of its inputs to its own alignment. The largest growth of an own
wait, of the work before the barrier, of a copy or of a write explains the difference of the durations.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from console import formats
from console.checkpoints.lanes import Lane, lanes_of
from console.checkpoints.models import ABORTED, SUPERSEDED, Checkpoint, Status
from console.jobs.operator_names import operator_names, quoted
from runtime.core.checkpoint.acknowledgements import PHASES

NOTABLE_SHARE: Final = 0.1  #: a smaller relative difference is not notable
NOTABLE_MS: Final = 20.0
NOTABLE_BYTES: Final = 4096
MIN_EXPLAINED: Final = 0.25  #: minimum share of the difference that an operator must explain to be named
MEASURES: Final = (
    *(f"{phase}_ms" for phase in PHASES), "state_bytes", "written_bytes", "rows", "subtasks", "in_flight_bytes",
)  # fmt: skip
_CAUSES: Final[Mapping[str, str]] = {
    "trigger": "the wait of {} for its trigger",
    "barrier": "the wait for barriers in the input of {}",
    "pre_barrier": "the work of {} before its barrier",
    "sync": "the copy of the state of {}",
    "async": "the write of the state of {}",
    "rest": "the time to store and record the manifest",
}

_ENDINGS: Final[Mapping[str, str]] = {
    Status.IN_PROGRESS: "is in progress",
    Status.FAILED: "failed",
    ABORTED: "was aborted",
    SUPERSEDED: "was superseded",
}


@dataclass(frozen=True, slots=True)
class Side:
    """A checkpoint to compare. `took_ms`: from the trigger to the end, or until now.

    Args:
        rows: rows of state by operator, from the manifest. None: the files are deleted or cannot be read.
        in_flight: bytes in flight by operator at the trigger, from the history of numbers; empty if it is not kept.
        fault: why the files cannot be read, as a sentence; "" if they can, or are deleted.
    """

    checkpoint: Checkpoint
    took_ms: float
    rows: Mapping[str, int] | None
    in_flight: Mapping[str, int]
    fault: str = ""

    @property
    def unknown(self) -> frozenset[str]:
        """The measures that are not known of any operator."""
        is_unknown = {"rows": self.rows is None, "in_flight_bytes": not self.in_flight}
        return frozenset(name for name, is_so in is_unknown.items() if is_so)


@dataclass(frozen=True, slots=True)
class Change:
    """A measure on both sides; None: not known, or the side does not have the operator.

    `is_comparable`: False if a side does not know the measure of any operator. Then no difference is notable.
    """

    base: float | None
    other: float | None
    is_comparable: bool = True

    @property
    def difference(self) -> float | None:
        return None if self.base is None or self.other is None else self.other - self.base

    def is_notable(self, least: float) -> bool:
        """Whether the sides differ by `least` and by `NOTABLE_SHARE`. A value that appears or vanishes is notable."""
        if not self.is_comparable:
            return False
        if self.difference is None:
            return (self.base or self.other or 0) >= least
        largest = max(abs(self.base or 0), abs(self.other or 0))
        return abs(self.difference) >= max(least, NOTABLE_SHARE * largest)


@dataclass(frozen=True, slots=True)
class OperatorChange:
    """An operator on both sides, with a change for each of `MEASURES`. Durations are the maximum of its subtasks."""

    uid: str
    name: str
    changes: Mapping[str, Change]

    @property
    def is_notable(self) -> bool:
        return any(change.is_notable(least_notable(name)) for name, change in self.changes.items())


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of two checkpoints. `explained_by`: uid of the operator that the sentence names, or ""."""

    base: Checkpoint
    other: Checkpoint
    duration_ms: Change
    state_bytes: Change
    written_bytes: Change
    operators: tuple[OperatorChange, ...]
    sentence: str
    explained_by: str

    @property
    def notable(self) -> tuple[OperatorChange, ...]:
        return tuple(each for each in self.operators if each.is_notable)

    @property
    def equal(self) -> tuple[OperatorChange, ...]:
        return tuple(each for each in self.operators if not each.is_notable)


def compare(base: Side, other: Side, graph: Mapping[str, Any]) -> Comparison:
    """Compares two checkpoints. `graph`: that of the newer version, which orders and names the operators."""
    names = operator_names(graph)
    sides = [_Measured(side, names) for side in (base, other)]
    uids = sorted({*sides[0].operators, *sides[1].operators}, key=_place(list(names)))
    unknown = base.unknown | other.unknown
    first, second = (side.operators for side in sides)
    operators = tuple(
        OperatorChange(
            uid,
            names.get(uid, uid),
            {
                name: Change(first.get(uid, {}).get(name), second.get(uid, {}).get(name), name not in unknown)
                for name in MEASURES
            },
        )
        for uid in uids
    )
    changes = {
        name: Change(getattr(base.checkpoint, name), getattr(other.checkpoint, name))
        for name in ("size_bytes", "written_bytes")
    }
    duration = Change(base.took_ms, other.took_ms)
    cause, uid = _duration_sentence(base, other, duration, sides, graph)
    state, largest = _state_sentence(changes["size_bytes"], operators, names)
    parts = [*_endings(base, other), cause, state, *_faults(base, other)]
    return Comparison(
        base=base.checkpoint,
        other=other.checkpoint,
        duration_ms=duration,
        state_bytes=changes["size_bytes"],
        written_bytes=changes["written_bytes"],
        operators=operators,
        sentence=" ".join(filter(None, parts)),
        explained_by=uid or largest,
    )


class _Measured:
    """The numbers of a side by operator: of its row, or of the acknowledgements if it has not completed."""

    def __init__(self, side: Side, names: Mapping[str, str]) -> None:
        self.side = side
        lanes = lanes_of(side.checkpoint.acknowledgements, list(names))
        self.lanes = [lane for lane in lanes if lane.at_ms is not None]
        recorded = {row["uid"]: _row_numbers(row) for row in side.checkpoint.operators}
        self.operators = recorded or {uid: _lane_numbers(lanes) for uid, lanes in _by_operator(self.lanes).items()}
        for uid, numbers in self.operators.items():
            numbers["rows"] = None if side.rows is None else side.rows.get(uid, 0)
            numbers["in_flight_bytes"] = side.in_flight.get(uid)

    def own_times(self, graph: Mapping[str, Any]) -> dict[tuple[str, str], float]:
        """Milliseconds by operator and cause. The rest, after the last acknowledgement, belongs to no operator."""
        upstream: dict[str, list[str]] = {}
        for edge in graph.get("edges", ()):
            if not edge["feedback"]:
                upstream.setdefault(edge["target"], []).append(edge["source"])
        lanes = _by_operator(self.lanes)
        forwarded = {uid: max(lane.forwarded_ms for lane in group) for uid, group in lanes.items()}
        times: dict[tuple[str, str], float] = {}
        for uid, group in lanes.items():
            arrived = max((forwarded[source] for source in upstream.get(uid, ()) if source in forwarded), default=0.0)
            times[uid, "barrier" if upstream.get(uid) else "trigger"] = max(
                0.0, max(lane.barriers_ms for lane in group) - arrived
            )
            for phase in ("pre_barrier", "sync", "async"):
                times[uid, phase] = max(lane.phase_ms(phase) for lane in group)
        if self.lanes and self.side.checkpoint.status == Status.COMPLETED:
            times["", "rest"] = max(0.0, self.side.took_ms - max(lane.at_ms or 0 for lane in self.lanes))
        return times


def _row_numbers(row: Mapping[str, Any]) -> dict[str, float | None]:
    phases = {f"{phase}_ms": row.get(f"max_{phase}_ms") for phase in PHASES}
    return phases | {name: row.get(name) for name in ("state_bytes", "written_bytes", "subtasks")}


def _lane_numbers(lanes: Sequence[Lane]) -> dict[str, float | None]:
    numbers: dict[str, float | None] = {f"{phase}_ms": max(lane.phase_ms(phase) for lane in lanes) for phase in PHASES}
    numbers["state_bytes"] = sum(lane.state_bytes or 0 for lane in lanes)
    numbers["written_bytes"] = sum(lane.written_bytes or 0 for lane in lanes)
    return numbers | {"subtasks": len(lanes)}


def _by_operator(lanes: Iterable[Lane]) -> dict[str, list[Lane]]:
    groups: dict[str, list[Lane]] = {}
    for lane in lanes:
        groups.setdefault(lane.operator, []).append(lane)
    return groups


# ---------------------------------------------------------------- sentences


def _endings(base: Side, other: Side) -> list[str]:
    """A sentence for each checkpoint that has not completed: its numbers are incomplete."""
    return [
        f"{str(side.checkpoint).capitalize()} {_ENDINGS[side.checkpoint.outcome]}: only the subtasks that have "
        f"acknowledged are compared."
        for side in (base, other)
        if side.checkpoint.status != Status.COMPLETED
    ]


def _faults(base: Side, other: Side) -> list[str]:
    return [
        f"The rows in the state of {side.checkpoint} are not known. {side.fault}"
        for side in (base, other)
        if side.fault
    ]


def _duration_sentence(
    base: Side, other: Side, duration: Change, sides: Sequence[_Measured], graph: Mapping[str, Any]
) -> tuple[str, str]:
    """The sentence, and the uid of the operator that it names, or ""."""
    first, second = str(other.checkpoint).capitalize(), str(base.checkpoint)
    if not duration.is_notable(NOTABLE_MS):
        return f"{first} took about as long as {second}, {_time(other.took_ms)}.", ""
    difference = duration.difference or 0.0
    names = operator_names(graph)
    took = f"{first} took {_time(abs(difference))} {'longer' if difference > 0 else 'less'} than {second}"
    before, after = (side.own_times(graph) for side in sides)
    growth = {key: after.get(key, 0.0) - before.get(key, 0.0) for key in {**before, **after}}
    (uid, cause), most = max(
        ((key, ms if difference > 0 else -ms) for key, ms in growth.items()),
        key=lambda item: item[1],
        default=(("", ""), 0.0),
    )
    if most < MIN_EXPLAINED * abs(difference):
        return f"{took}. No single operator explains the difference.", ""
    share = formats.percent(most / abs(difference))
    changed = "grew" if difference > 0 else "shrank"
    clause = _CAUSES[cause].format(quoted(names.get(uid, uid)))
    return f"{took}: {clause} {changed} by {_time(most)}, {share} of the difference.", uid


def _state_sentence(state: Change, operators: Sequence[OperatorChange], names: Mapping[str, str]) -> tuple[str, str]:
    """The sentence on the size of the state, and the uid of the operator that it names, or ""."""
    if state.difference is None:
        return "", ""
    if not state.is_notable(NOTABLE_BYTES):
        return f"The size of the state is about the same, {formats.size(round(state.other or 0))}.", ""
    difference = state.difference
    size, comparative = formats.size(round(abs(difference))), "larger" if difference > 0 else "smaller"
    sign = 1 if difference > 0 else -1
    by_operator = {each.uid: sign * (each.changes["state_bytes"].difference or 0) for each in operators}
    uid = max(by_operator, key=lambda name: by_operator[name], default="")
    most = by_operator.get(uid, 0)
    if most < MIN_EXPLAINED * abs(difference):
        return f"The state is {size} {comparative}; no single operator explains the difference.", ""
    share = formats.percent(most / abs(difference))
    return f"The state is {size} {comparative}, {share} of it in {quoted(names.get(uid, uid))}.", uid


def least_notable(name: str) -> float:
    """The smallest notable difference of a measure."""
    return NOTABLE_MS if name.endswith("_ms") else NOTABLE_BYTES if name.endswith("_bytes") else 1.0


def _place(order: Sequence[str]) -> Callable[[str], tuple[int, str]]:
    places = {uid: place for place, uid in enumerate(order)}
    return lambda uid: (places.get(uid, len(places)), uid)


def _time(ms: float) -> str:
    return str(formats.duration(ms))
