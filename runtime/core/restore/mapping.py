"""The mapping report of a restore: how each operator of a manifest maps, by uid, to the operators of a graph.

The report exists before the restore. Pages and API show it; the job master refuses a restore by it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import msgspec
from msgspec.structs import replace

from runtime.core.job.column_types import Compatibility, Rule, key_rule, value_rule
from runtime.core.job.graph import JobGraph, Partitioning, Role, keyed_inputs
from runtime.core.restore.declarations import Declarations, invalid_changes
from runtime.core.snapshot.manifest import (
    FORMAT_VERSION,
    SET_ASIDE_TIMES,
    FinishedState,
    Manifest,
    OperatorSnapshot,
    SubtaskSnapshot,
)
from runtime.core.snapshot.manifest_codec import OTHER_FORMAT, other_format
from runtime.errors import JobRejected


class OperatorMatch(StrEnum):
    """The match of an operator between checkpoint and graph."""

    MATCHED = "matched"  #: its state is restored
    FINISHED = "finished"  #: it had finished and is skipped
    NEW = "new"  #: it starts empty
    DROPPED = "dropped"  #: the graph lacks it
    INCOMPATIBLE = "incompatible"  #: the graph has it, and it prevents the restore


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreProblem:
    """The reason to refuse a restore. `field`: the operator or field at fault."""

    code: str
    field: str
    detail: str
    waivable: bool = False  #: `allow_unmapped` overrides it


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorMapping:
    """The mapping of an operator that is in the checkpoint, in the graph, or in both."""

    uid: str
    fate: OperatorMatch
    reason: str
    parallelism_before: int | None = None
    parallelism_after: int | None = None
    partly_finished: bool = False
    is_widened: bool = False  #: columns of its state get a wider type
    state_bytes: int = 0
    problem: RestoreProblem | None = None

    @property
    def is_unchanged(self) -> bool:
        """Whether the operator continues as it was, at the same parallelism."""
        differs = self.partly_finished or self.is_widened or self.parallelism_before != self.parallelism_after
        return self.fate is OperatorMatch.MATCHED and not differs

    def __str__(self) -> str:
        before, after = ("none" if n is None else n for n in (self.parallelism_before, self.parallelism_after))
        return f"{self.uid}: {self.fate}, parallelism {before} to {after}, {self.state_bytes:,} bytes; {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingReport:
    """The mapping of all operators. `problems`: of the checkpoint as a whole; each operator's mapping has its own."""

    problems: tuple[RestoreProblem, ...]
    operators: tuple[OperatorMapping, ...]

    def __str__(self) -> str:
        """A line per problem of the checkpoint and per operator, for a terminal."""
        lines = [f"{problem.code}: {problem.detail}" for problem in self.problems]
        return "\n".join([*lines, *map(str, self.operators)])

    @property
    def all_problems(self) -> tuple[RestoreProblem, ...]:
        return (*self.problems, *(operator.problem for operator in self.operators if operator.problem is not None))

    @property
    def loses(self) -> tuple[str, ...]:
        """The operators whose state is lost with `allow_unmapped`."""
        return tuple(problem.field for problem in self.all_problems if problem.waivable)

    def refusal(self, *, allow_unmapped: bool) -> RestoreProblem | None:
        """The first problem that prevents the restore, or None. Problems that cannot be waived come first."""
        problems = sorted(self.all_problems, key=lambda problem: problem.waivable)
        return next((problem for problem in problems if not (problem.waivable and allow_unmapped)), None)


class TargetOperator(msgspec.Struct, frozen=True):
    """An operator of the target graph."""

    uid: str
    role: Role
    parallelism: int
    commits: bool  #: whether the operator has a committer
    durations: dict[str, int]  #: as in `OperatorSpec`
    aggregates: tuple[tuple[str, str], ...]  #: as in `OperatorSpec`
    times: tuple[str, ...]  #: as in `OperatorSpec`
    most: int | None = None  #: parallelism at the job's maximum parallelism, which the compile stage adds


class TargetEdge(msgspec.Struct, frozen=True):
    """An edge of the target graph."""

    source: str
    target: str
    input: int
    output: str
    partitioning: Partitioning
    build: bool
    feedback: bool
    keys: tuple[str, ...]
    key_types: tuple[str, ...]  #: empty: known from the data only
    value_types: tuple[tuple[str, str], ...]  #: state columns of `target` with their types; empty: see `key_types`


class RestoreTarget(msgspec.Struct, frozen=True):
    """The target graph of a restore, decoded from the JSON of `JobGraph.to_json` as the console stores it."""

    max_parallelism: int
    operators: tuple[TargetOperator, ...]
    edges: tuple[TargetEdge, ...]

    @classmethod
    def of(cls, graph: JobGraph) -> Self:
        return msgspec.convert(graph.to_json(), cls)

    def for_parallelism(self, parallelism: int) -> Self:
        """The graph of the compile stage at `parallelism`."""
        assert all(operator.most is not None for operator in self.operators), "only the compile stage adds `most`"
        operators = (replace(o, parallelism=min(o.most or 1, parallelism)) for o in self.operators)
        return replace(self, operators=tuple(operators))

    def predecessors(self, uid: str) -> Iterator[str]:
        """The predecessors by regular edges, without feedback edges."""
        return (edge.source for edge in self.edges if edge.target == uid and not edge.feedback)

    def declarations(self, operator: TargetOperator) -> Declarations:
        hashed = [e for e in self.edges if e.target == operator.uid and e.partitioning is Partitioning.HASH]
        return Declarations(
            durations=operator.durations,
            keys=tuple(edge.keys for edge in sorted(hashed, key=lambda edge: edge.input)),
            aggregates=operator.aggregates,
            times=operator.times,
        )

    @property
    def loop_heads(self) -> set[str]:
        """The heads of loops: targets of feedback edges."""
        return {edge.target for edge in self.edges if edge.feedback}


def mapping_report(manifest: Manifest, target: RestoreTarget, job: str) -> MappingReport:
    """The report of a restore of `manifest` into `target`, for the job with the id `job`."""
    before_finished = _predecessors_of_finished_operators(manifest, target)
    uids = {operator.uid for operator in target.operators}
    mappings = [
        _map_operator(o, manifest.operators.get(o.uid), before_finished.get(o.uid), target) for o in target.operators
    ]
    removals = [_map_missing_operator(uid, snapshot) for uid, snapshot in manifest.operators.items() if uid not in uids]
    return MappingReport(problems=tuple(_checkpoint_problems(manifest, target, job)), operators=(*mappings, *removals))


def check_restorable(manifest: Manifest, graph: JobGraph, job: str, *, allow_unmapped: bool = False) -> None:
    """Refuses a restore that would lose or misplace state, before the job starts.

    Raises:
        JobRejected: `field` names the operator or field at fault.
    """
    problem = mapping_report(manifest, RestoreTarget.of(graph), job).refusal(allow_unmapped=allow_unmapped)
    if problem is not None:
        raise JobRejected(problem.code, problem.field, problem.detail)


def has_state(operator: OperatorSnapshot) -> bool:
    """Whether dropping the operator would lose state. Declared but empty states do not count."""
    return any(map(_has_subtask_state, operator.subtasks.values()))


def _has_subtask_state(snapshot: SubtaskSnapshot) -> bool:
    lists = {name: values for name, values in snapshot.lists.items() if name != SET_ASIDE_TIMES}
    state_maps = (snapshot.keyed, snapshot.broadcast, lists, snapshot.unions)
    rest = (snapshot.committables, snapshot.feedback, snapshot.in_flight)
    return any(any(states.values()) for states in state_maps) or any(rest)


def _checkpoint_problems(manifest: Manifest, target: RestoreTarget, job: str) -> Iterator[RestoreProblem]:
    if manifest.format != FORMAT_VERSION:
        yield RestoreProblem(code=OTHER_FORMAT, field="checkpoint", detail=other_format(manifest.format))
    if manifest.job != job:
        yield RestoreProblem(
            code="other-job", field="checkpoint", detail=f"it belongs to job {manifest.job}, not to job {job}"
        )
    if manifest.max_parallelism != target.max_parallelism:
        detail = f"the checkpoint has {manifest.max_parallelism} key groups, the job {target.max_parallelism}"
        yield RestoreProblem(code="max-parallelism-changed", field="max_parallelism", detail=detail)
    yield from _missing_loops(manifest, target)
    yield from _missing_edges(manifest, target)


def _missing_loops(manifest: Manifest, target: RestoreTarget) -> Iterator[RestoreProblem]:
    """Problems: the checkpoint holds feedback records for an operator that is no loop head in the target graph."""
    uids = {operator.uid for operator in target.operators} - target.loop_heads
    for uid, operator in manifest.operators.items():
        if uid in uids and any(snapshot.feedback for snapshot in operator.subtasks.values()):
            detail = "the checkpoint holds feedback records for it, and the job has no loop back to it now"
            yield RestoreProblem(code="unmapped-state", field=uid, detail=detail, waivable=True)


def _missing_edges(manifest: Manifest, target: RestoreTarget) -> Iterator[RestoreProblem]:
    """Problems: the checkpoint holds rows in flight that the target graph cannot replay."""
    uids = {operator.uid for operator in target.operators}
    for uid, operator in manifest.operators.items():
        edges = keyed_inputs(target.edges, uid)
        rows = (rows for snapshot in operator.subtasks.values() for rows in snapshot.in_flight)
        unmapped = sorted({each.source for each in rows if not any(map(each.is_from, edges))})
        if uid in uids and unmapped:
            detail = (
                f"the checkpoint holds rows in flight to it from {', '.join(map(repr, unmapped))}, and the job has no "
                "edge between them with the same output and keys, or not all inputs are partitioned by key: take a "
                "savepoint with alignment_timeout_ms 0"
            )
            yield RestoreProblem(code="unmapped-rows", field=uid, detail=detail, waivable=True)


def _predecessors_of_finished_operators(manifest: Manifest, target: RestoreTarget) -> dict[str, str]:
    """Unfinished operator -> finished operator that it feeds. The records between them would be lost."""
    finished = set(manifest.finished_operators())
    return {
        before: uid
        for uid in (operator.uid for operator in target.operators if operator.uid in finished)
        for before in target.predecessors(uid)
        if before not in finished
    }


def _map_operator(
    operator: TargetOperator, snapshot: OperatorSnapshot | None, feeds_finished: str | None, target: RestoreTarget
) -> OperatorMapping:
    problem = _operator_problem(operator, snapshot, feeds_finished, target)
    changed: list[_ChangedColumn] = []
    if problem is None and snapshot is not None and snapshot.finished is not FinishedState.FINISHED:
        changed = list(_changed_columns(operator.uid, snapshot, target))
        problem = next((_type_problem(operator.uid, column) for column in changed if column.rule.common is None), None)
    if problem is not None:
        fate, reason = OperatorMatch.INCOMPATIBLE, problem.detail
    elif snapshot is None:
        fate, reason = OperatorMatch.NEW, "it is not in the checkpoint and starts empty"
    else:
        fate, reason = _match_state(snapshot)
        notes = [f"{column.text}: widened to {column.rule.common}" for column in changed]
        reason = "; ".join([reason, *sorted(notes), *_unchecked_keys(operator.uid, snapshot, target)])
    return OperatorMapping(
        uid=operator.uid,
        fate=fate,
        reason=reason,
        parallelism_before=None if snapshot is None else snapshot.parallelism,
        parallelism_after=operator.parallelism,
        partly_finished=snapshot is not None and snapshot.finished is FinishedState.PARTLY,
        is_widened=bool(changed),
        state_bytes=0 if snapshot is None else _state_bytes(snapshot),
        problem=problem,
    )


def _match_state(snapshot: OperatorSnapshot) -> tuple[OperatorMatch, str]:
    origin = f" ({snapshot.origin})" if snapshot.origin else ""
    match snapshot.finished:
        case FinishedState.FINISHED:
            return OperatorMatch.FINISHED, f"it had finished and is skipped{origin}"
        case FinishedState.PARTLY:
            return (
                OperatorMatch.MATCHED,
                f"some of its subtasks had finished; the remaining state is redistributed{origin}",
            )
        case FinishedState.RUNNING:  # pragma: no branch
            return OperatorMatch.MATCHED, f"its state is restored{origin}"


def _operator_problem(
    operator: TargetOperator, snapshot: OperatorSnapshot | None, feeds_finished: str | None, target: RestoreTarget
) -> RestoreProblem | None:
    if feeds_finished is not None:
        detail = f"it feeds {feeds_finished!r}, which had finished in the checkpoint"
        return RestoreProblem(code="operator-before-finished", field=operator.uid, detail=detail)
    if snapshot is None:
        return None
    if not operator.commits and _has_committables(snapshot):
        return _unmapped_output(operator.uid)
    changes = list(invalid_changes(_declarations(snapshot), target.declarations(operator)))
    if changes and snapshot.finished is not FinishedState.FINISHED:
        detail = (
            f"{', '.join(change.text for change in changes)}, by which the state cannot be read: restore it with the "
            "former value, or give the changed operator another uid and drop the state"
        )
        return RestoreProblem(code=changes[0].code, field=operator.uid, detail=detail)
    return None


def _declarations(operator: OperatorSnapshot) -> Declarations:
    """The declarations by which the state in the checkpoint was formed. Without keyed state, any keys can read it."""
    if not any(any(snapshot.keyed.values()) or snapshot.in_flight for snapshot in operator.subtasks.values()):
        return Declarations(durations=operator.durations)
    return Declarations(
        durations=operator.durations, keys=operator.keys, aggregates=operator.aggregates, times=operator.times
    )


def _unchecked_keys(uid: str, operator: OperatorSnapshot, target: RestoreTarget) -> Iterator[str]:
    """A note: the types of its keys in the job are known from the first rows only."""
    key_types = {column: kind for snapshot in operator.subtasks.values() for column, kind in snapshot.key_types.items()}
    for edge in target.edges:
        if edge.target == uid and not edge.key_types and (names := [name for name in edge.keys if name in key_types]):
            columns = ", ".join(f"{name!r} ({key_types[name]} in the checkpoint)" for name in names)
            yield f"the first rows decide whether the type of its key {columns} is the same"


@dataclass(frozen=True, slots=True)
class _ChangedColumn:
    """A column of keys or values whose types differ in the checkpoint and in the job."""

    kind: str  #: "key" or "state"
    name: str
    before: str
    now: str
    rule: Rule

    @property
    def text(self) -> str:
        return f"{self.kind} column {self.name!r} is {self.before} in the checkpoint and {self.now} in the job"


def _changed_columns(uid: str, operator: OperatorSnapshot, target: RestoreTarget) -> Iterator[_ChangedColumn]:
    """The columns whose known types differ between checkpoint and job."""
    snapshots = operator.subtasks.values()
    for edge in target.edges:
        if edge.target != uid:
            continue
        for column, now in zip(edge.keys, edge.key_types, strict=True) if edge.key_types else ():
            for before in {snapshot.key_types.get(column, now) for snapshot in snapshots}:
                yield from _type_change("key", column, before, now, key_rule(before, now))
        for column, now in edge.value_types:
            for before in {snapshot.value_types.get(column, now) for snapshot in snapshots}:
                yield from _type_change("state", column, before, now, value_rule(before, now))


def _type_change(kind: str, name: str, before: str, now: str, rule: Rule) -> Iterator[_ChangedColumn]:
    if rule.verdict is not Compatibility.SAME:
        yield _ChangedColumn(kind, name, before, now, rule)


def _type_problem(uid: str, column: _ChangedColumn) -> RestoreProblem:
    place = "key_by" if column.kind == "key" else "the operator"
    detail = f"{column.text}: convert it to its former type before {place}"
    return RestoreProblem(code=f"{column.kind}-type-changed", field=uid, detail=detail)


def _map_missing_operator(uid: str, snapshot: OperatorSnapshot) -> OperatorMapping:
    problem = None
    if _has_committables(snapshot):
        problem = _unmapped_output(uid)
    elif has_state(snapshot):
        detail = "the checkpoint holds state for an operator that the job lacks"
        problem = RestoreProblem(code="unmapped-state", field=uid, detail=detail, waivable=True)
    return OperatorMapping(
        uid=uid,
        fate=OperatorMatch.DROPPED,
        reason=problem.detail if problem else "the job lacks it, and it held no state",
        parallelism_before=snapshot.parallelism,
        partly_finished=snapshot.finished is FinishedState.PARTLY,
        state_bytes=_state_bytes(snapshot),
        problem=problem,
    )


def _has_committables(operator: OperatorSnapshot) -> bool:
    return any(snapshot.committables for snapshot in operator.subtasks.values())


def _unmapped_output(uid: str) -> RestoreProblem:
    detail = "the checkpoint holds output to commit for a sink that the job lacks"
    return RestoreProblem(code="unmapped-output", field=uid, detail=detail)


def _state_bytes(operator: OperatorSnapshot) -> int:
    return sum(segment.nbytes for snapshot in operator.subtasks.values() for segment in snapshot.segments())
