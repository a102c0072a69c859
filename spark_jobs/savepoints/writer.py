"""Savepoints that no running job has taken: Spark tasks make them from DataFrames, or from another savepoint.

    writer = SavepointWriter.new_savepoint(spark, flow, job=7)
    writer.bootstrap_operator("counts", history)              # the operator processes these rows; its output is dropped
    writer.write("/savepoints/counts-of-last-year")

    writer = SavepointWriter.from_savepoint(spark, "/storage/7/savepoint-12-3")
    writer.remove_operator("alerts").rename_operator("counts", "counts-by-user")
    writer.rekey_operator("seen", lambda user: user.lower(), pa.schema([("user", pa.string())]))
    writer.change_max_parallelism(512).write("/savepoints/moved")

A restore takes the path of the folder, as for a copied savepoint. An incomplete savepoint has a hidden name and no
manifest, so it cannot be restored. The manifest is signed if `WEIR_MANIFEST_KEY` is set. (Flink's State Processor API:
`SavepointWriter`.)
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
import pyarrow as pa

from runtime.clock import SystemClock
from runtime.core.job.graph import check_uid
from runtime.core.job.key_groups import MAX_KEY_GROUPS
from runtime.core.job.messages import CheckpointKind
from runtime.core.restore.mapping import MappingReport, RestoreTarget, mapping_report
from runtime.core.restore.state_assignment import has_rows_in_flight
from runtime.core.snapshot.manifest import FinishedState, Manifest, OperatorSnapshot, SubtaskSnapshot
from runtime.core.snapshot.manifest_codec import (
    MANIFEST_FILE,
    SigningKeys,
    encode_manifest,
    manifest_folder,
    parse_keys,
)
from runtime.dataflow.builder import Dataflow
from runtime.durable import sync_path
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.io.filesystem import FileStore
from runtime.state.backend import LIST_STATE, UNION_LIST_STATE
from runtime.state.list_state import OperatorList
from spark_jobs.savepoints.bootstrap import Bootstrap, Function
from spark_jobs.savepoints.declared import check_state, declared_state
from spark_jobs.savepoints.jobs import BootstrapRows, Execution, rows_for_operator, rows_for_table
from spark_jobs.savepoints.redistribution import Redistribution, Rekey
from spark_jobs.savepoints.table_rows import TableRows
from spark_jobs.state.rows import OpenedCheckpoint, open_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from runtime.dataflow.plan import CompiledJob

MANIFEST_KEY_VARIABLE: Final = "WEIR_MANIFEST_KEY"
DEFAULT_SUBTASKS: Final = 16  #: default split of bootstrapped state; a Spark task holds a subtask's state in memory
_FIRST_CHECKPOINT_ID: Final = 1
_VARIANT_BYTES: Final = 4


@dataclass(frozen=True, kw_only=True)
class WrittenSavepoint:
    """A written savepoint. `report`: the mapping of a restore into the job; None if no job was given."""

    folder: str
    manifest: Manifest
    report: MappingReport | None


@dataclass(frozen=True, kw_only=True)
class _KeptOperator:
    """An operator kept from the savepoint that is read. `source`: its uid in that savepoint."""

    source: str
    rekey: Rekey | None = None
    origins: tuple[str, ...] = ()


@dataclass(kw_only=True)
class _NewOperator:
    """An operator with bootstrapped state. `rows`: by state name; key "" for rows that the operator processes."""

    subtasks: int
    rows: dict[str, BootstrapRows] = field(default_factory=dict)
    lists: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    unions: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def snapshot(self, subtasks: dict[int, SubtaskSnapshot]) -> OperatorSnapshot:
        """The operator's snapshot: lists are divided among all subtasks, union lists are in the first subtask."""
        for index in range(self.subtasks) if self.lists or self.unions else ():
            shares = {name: _share(values, index, self.subtasks) for name, values in self.lists.items()}
            unions = {name: values if index == 0 else () for name, values in self.unions.items()}
            before = subtasks.get(index, SubtaskSnapshot())
            subtasks = {**subtasks, index: msgspec.structs.replace(before, lists=shares, unions=unions)}
        return OperatorSnapshot(
            parallelism=self.subtasks,
            finished=FinishedState.RUNNING,
            subtasks=subtasks,
            origin="bootstrapped from rows",
        )


@dataclass(kw_only=True)
class SavepointWriter:
    """Collects changes; `write` makes the savepoint. Create it by `new_savepoint` or `from_savepoint`."""

    _spark: SparkSession
    _job: str
    _max_parallelism: int
    _compiled: CompiledJob | None
    _checkpoint: OpenedCheckpoint | None
    _keys: SigningKeys
    _kept_operators: dict[str, _KeptOperator] = field(default_factory=dict)
    _new_operators: dict[str, _NewOperator] = field(default_factory=dict)

    @classmethod
    def new_savepoint(cls, spark: SparkSession, flow: Dataflow, *, job: str | int | None = None) -> Self:
        """Begins with an empty savepoint.

        Args:
            flow: the job that will be restored from the savepoint.
            job: id of the job in the console; None: the name of `flow`, for `run_local`.

        Raises:
            JobRejected: the job cannot run.
        """
        compiled = flow.compile(1)
        return cls(
            _spark=spark, _job=flow.name if job is None else str(job), _max_parallelism=compiled.graph.max_parallelism,
            _compiled=compiled, _checkpoint=None, _keys=_keys(),
        )  # fmt: skip

    @classmethod
    def from_savepoint(
        cls, spark: SparkSession, path: str, *, flow: Dataflow | None = None, job: str | int | None = None
    ) -> Self:
        """Begins with the contents of the checkpoint or savepoint in folder `path`.

        Args:
            flow: the job that will be restored from the result. Required to bootstrap operators and to check the
                result.
            job: id of the job in the console; None: the job that took the checkpoint.

        Raises:
            CorruptState: a file is missing, truncated, altered or not a manifest; it is named.
            JobRejected: the signature is not of a configured key, the checkpoint cannot be read in this folder, or it
                holds rows in flight; their operator is named.
        """
        keys = _keys()
        opened = open_checkpoint(path, keys)
        manifest = opened.manifest
        _check_no_rows_in_flight(manifest)
        return cls(
            _spark=spark, _job=manifest.job if job is None else str(job), _max_parallelism=manifest.max_parallelism,
            _compiled=None if flow is None else flow.compile(1), _checkpoint=opened, _keys=keys,
            _kept_operators={uid: _KeptOperator(source=uid) for uid in manifest.operators},
        )  # fmt: skip

    # ------------------------------------------------------------ changes

    def bootstrap_operator(
        self,
        uid: str,
        rows: DataFrame,
        *,
        function: Function | None = None,
        columns: pa.Schema | None = None,
        order_by: Sequence[str] = (),
        subtasks: int = DEFAULT_SUBTASKS,
    ) -> Self:
        """Bootstraps the state of an operator: the operator processes `rows`, and its output is dropped.

        No watermark advances: timers are registered but do not fire; open windows fire in the restored job.

        Args:
            uid: a process function behind `key_by`, an aggregate or a window.
            rows: the operator's input rows in the job.
            function: a process function that fills the same states in place of the operator's own function.
            columns: the columns of `rows` to use, with their Arrow types in the job where Spark's types differ.
            order_by: columns that order the rows of a key; default: the operator's event-time column, if any.
            subtasks: number of parts of the state. Each part must fit into the memory of a Spark task.

        Raises:
            JobRejected: the operator is unknown or has state already, or a column is missing; all are named.
        """
        job, new_operator = self._new_operator(uid, "", subtasks)
        bootstrap = Bootstrap(job=job, uid=uid, function=function, parallelism=new_operator.subtasks)
        new_operator.rows[""] = rows_for_operator(bootstrap, rows, columns, order_by)
        self._new_operators[uid] = new_operator
        return self

    def write_state(
        self,
        uid: str,
        state: str,
        rows: DataFrame,
        *,
        columns: pa.Schema | None = None,
        subtasks: int = DEFAULT_SUBTASKS,
    ) -> Self:
        """Writes the rows of a state with typed columns, a row per key: aggregates, windows, positions of a source.

        Args:
            uid: an operator or a source.
            rows: the columns of the state, as `weir-state` reads them; other columns are ignored.
            columns: Arrow types of columns, where the job does not declare them and Spark's types differ.
            subtasks: as in `bootstrap_operator`; equal for all states of an operator.

        Raises:
            JobRejected: operator or state is unknown, the state has no columns, or `rows` lacks a column; it is named.
        """
        job, new_operator = self._new_operator(uid, state, subtasks)
        new_operator.rows[state] = rows_for_table(TableRows.of(job, uid, state, new_operator.subtasks), rows, columns)
        self._new_operators[uid] = new_operator
        return self

    def write_list(self, uid: str, name: str, values: Sequence[Any], *, subtasks: int = DEFAULT_SUBTASKS) -> Self:
        """Writes `values`, which are JSON values, as a list or union list. A restore divides a list among the subtasks.

        Raises:
            JobRejected: operator or list is unknown, or a value is not JSON; all are named.
        """
        job, new_operator = self._new_operator(uid, name, subtasks)
        declared = declared_state(job, uid)
        check_state(declared, uid, name)
        kind = declared.kinds[name]
        if kind not in (LIST_STATE, UNION_LIST_STATE):
            raise JobRejected("cannot-bootstrap", uid, f"state {name!r} is {kind}, not a list")
        (new_operator.lists if kind == LIST_STATE else new_operator.unions)[name] = OperatorList(name, values).capture()
        self._new_operators[uid] = new_operator
        return self

    def _new_operator(self, uid: str, state: str, subtasks: int) -> tuple[CompiledJob, _NewOperator]:
        """The job with the savepoint's max parallelism, and the state collected for operator `uid` so far."""
        if self._compiled is None:
            detail = "bootstrapping an operator needs the job: SavepointWriter.from_savepoint(…, flow=…)"
            raise JobRejected("no-job", uid, detail)
        if not 0 < subtasks <= MAX_KEY_GROUPS:
            raise JobRejected("bad-parallelism", "subtasks", f"must lie between 1 and {MAX_KEY_GROUPS}, not {subtasks}")
        new_operator = self._new_operators.get(uid, _NewOperator(subtasks=min(subtasks, self._max_parallelism)))
        states = {*new_operator.rows, *new_operator.lists, *new_operator.unions}
        if uid in self._kept_operators or "" in states or (state == "" and new_operator.rows):
            raise JobRejected("operator-exists", uid, "the savepoint has this operator already: remove it first")
        if state in states:
            raise JobRejected("duplicate-state", uid, f"state {state!r} is written twice")
        if new_operator.subtasks != min(subtasks, self._max_parallelism):
            detail = f"its states are split into {new_operator.subtasks} subtasks, so all states must be"
            raise JobRejected("bad-parallelism", uid, detail)
        graph = replace(self._compiled.graph, max_parallelism=self._max_parallelism)
        return replace(self._compiled, graph=graph), new_operator

    def remove_operator(self, uid: str) -> Self:
        """Removes an operator with all its state.

        Raises:
            JobRejected: the operator is unknown, or holds output that is not committed yet.
        """
        if self._new_operators.pop(uid, None) is None:
            operator = self._find_kept(uid)
            if any(snapshot.committables for snapshot in self._snapshot(operator).subtasks.values()):
                detail = "it holds output that is not committed yet, which would be lost"
                raise JobRejected("unmapped-output", uid, detail)
            del self._kept_operators[uid]
        return self

    def rename_operator(self, uid: str, new_uid: str) -> Self:
        """Assigns the state of an operator to the uid `new_uid`.

        Raises:
            JobRejected: the operator is unknown, or another operator has the uid `new_uid`.
        """
        operator = self._find_kept(uid)
        check_uid(new_uid)
        if new_uid in self._kept_operators or new_uid in self._new_operators:
            raise JobRejected("operator-exists", new_uid, "the savepoint has an operator of this uid already")
        origins = (*operator.origins, f"renamed from {uid!r}")
        self._kept_operators = {
            new_uid if name == uid else name: replace(each, origins=origins) if name == uid else each
            for name, each in self._kept_operators.items()
        }
        return self

    def rekey_operator(self, uid: str, function: Callable[[Any], Any], keys: pa.Schema) -> Self:
        """Moves all keyed state of an operator to other keys. No two keys may map to the same key.

        Args:
            function: takes and returns a key: the value of a single key column, or a tuple with a value per key column.
            keys: the new key columns with their Arrow types, as in the job.

        Raises:
            JobRejected: the operator is unknown, or a column cannot be a key.
        """
        operator, rekey = self._find_kept(uid), Rekey(function, keys)
        rekey.check(uid)
        if operator.rekey is not None:
            raise JobRejected("re-keyed-twice", uid, "it is re-keyed already: combine both into a single function")
        origins = (*operator.origins, f"re-keyed by {', '.join(keys.names)}")
        self._kept_operators[uid] = replace(operator, rekey=rekey, origins=origins)
        return self

    def change_max_parallelism(self, max_parallelism: int) -> Self:
        """Redistributes all keyed state to another number of key groups. Call it before operators are bootstrapped.

        Raises:
            JobRejected: out of range, below an operator's parallelism, or operators are bootstrapped already.
        """
        most = max((self._snapshot(operator).parallelism for operator in self._kept_operators.values()), default=1)
        if not most <= max_parallelism <= MAX_KEY_GROUPS:
            detail = f"must lie between the parallelism of the savepoint, {most}, and {MAX_KEY_GROUPS}"
            raise JobRejected("bad-max-parallelism", "max_parallelism", f"{detail}, not {max_parallelism}")
        if self._new_operators:
            detail = "change it before operators are bootstrapped"
            raise JobRejected("bad-max-parallelism", "max_parallelism", detail)
        self._max_parallelism = max_parallelism
        return self

    # ------------------------------------------------------------ writing

    def write(self, folder: str) -> WrittenSavepoint:
        """Writes the savepoint to `folder`, which must not exist. After an error it does not exist either.

        Raises:
            JobRejected: the savepoint does not fit the job, rows are refused, or the folder exists.
            WeirError: a task failed in all attempts; the operator is named.
        """
        target = _free_folder(folder)
        staging = target.with_name(f".{target.name}.{secrets.token_hex(_VARIANT_BYTES)}")
        try:
            manifest = self._store(str(staging))
            report = self._check_restore(manifest)
            FileStore(staging).put(MANIFEST_FILE, [encode_manifest(manifest, self._keys)])
            _rename_durably(staging, target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return WrittenSavepoint(folder=str(target), manifest=manifest, report=report)

    def _store(self, staging: str) -> Manifest:
        """Stores all state. The manifest names files by their path in the job's storage."""
        Path(staging).mkdir(mode=0o700, parents=True)
        execution = Execution(self._spark, staging)
        operators = {uid: self._store_kept(uid, operator, execution) for uid, operator in self._kept_operators.items()}
        for rows in (rows for operator in self._new_operators.values() for rows in operator.rows.values()):
            execution.bootstrap(rows)
        result = execution.run()
        operators |= {
            uid: operator.snapshot(result.snapshots.get(uid, {})) for uid, operator in self._new_operators.items()
        }
        for uid in result.redistributions:
            operators[uid] = result.with_redistributed_state(uid, operators[uid])
        manifest = self._manifest(operators)
        execution.delete_unnamed_files(manifest)
        home = f"{manifest_folder(manifest)}/"
        return manifest.with_segments(lambda segment: msgspec.structs.replace(segment, path=home + segment.path))

    def _store_kept(self, uid: str, operator: _KeptOperator, execution: Execution) -> OperatorSnapshot:
        """Redistributes keyed state if keys or key groups change, and copies all other files."""
        assert self._checkpoint is not None, "kept operators come from a checkpoint"
        snapshot, before = self._snapshot(operator), self._checkpoint.manifest.max_parallelism
        origins = operator.origins
        is_finished = snapshot.finished is FinishedState.FINISHED
        if (operator.rekey is not None or before != self._max_parallelism) and not is_finished:
            redistribution = Redistribution(
                checkpoint=self._checkpoint,
                uid=operator.source,
                parallelism=snapshot.parallelism,
                max_parallelism=self._max_parallelism,
                rekey=operator.rekey,
            )
            if redistribution.states:
                execution.redistribute(uid, redistribution)
                subtasks = {i: msgspec.structs.replace(subtask, keyed={}) for i, subtask in snapshot.subtasks.items()}
                snapshot = msgspec.structs.replace(snapshot, subtasks=subtasks)
                if before != self._max_parallelism:
                    origins = (*origins, f"redistributed to {self._max_parallelism} key groups, from {before}")
        subtasks = {
            index: execution.copy(self._checkpoint, uid, subtask) for index, subtask in snapshot.subtasks.items()
        }
        origin = "; ".join(filter(None, [snapshot.origin, *origins]))
        return msgspec.structs.replace(snapshot, subtasks=subtasks, origin=origin)

    def _manifest(self, operators: dict[str, OperatorSnapshot]) -> Manifest:
        before = None if self._checkpoint is None else self._checkpoint.manifest
        kind = CheckpointKind.SAVEPOINT
        if before is not None and before.kind.is_savepoint:
            kind = before.kind
        return Manifest(
            job=self._job,
            checkpoint=_FIRST_CHECKPOINT_ID if before is None else before.checkpoint,
            kind=kind,
            token=0,
            variant=secrets.token_hex(_VARIANT_BYTES),
            triggered_at=SystemClock().now_ms(),
            max_parallelism=self._max_parallelism,
            operators=operators,
        )

    def _check_restore(self, manifest: Manifest) -> MappingReport | None:
        """The mapping report of a restore into the job. Raises JobRejected: the job cannot restore the savepoint."""
        if self._compiled is None:
            return None
        report = mapping_report(manifest, RestoreTarget.of(self._compiled.graph), self._job)
        problem = report.refusal(allow_unmapped=False)
        if problem is not None:
            raise JobRejected(problem.code, problem.field, problem.detail)
        return report

    def _find_kept(self, uid: str) -> _KeptOperator:
        if uid not in self._kept_operators:
            uids = ", ".join(sorted(self._kept_operators)) or "none"
            raise JobRejected("unknown-operator", uid, f"the savepoint has no operator {uid!r}; there are: {uids}")
        return self._kept_operators[uid]

    def _snapshot(self, operator: _KeptOperator) -> OperatorSnapshot:
        assert self._checkpoint is not None, "kept operators come from a checkpoint"
        return self._checkpoint.manifest.operators[operator.source]


def _check_no_rows_in_flight(manifest: Manifest) -> None:
    """Rows in flight would reach an operator whose state, keys or uid may change. Raises JobRejected."""
    for uid, operator in manifest.operators.items():
        if has_rows_in_flight(operator):
            detail = "the savepoint holds rows in flight to it: take one by a stop, or with alignment_timeout_ms 0"
            raise JobRejected("rows-in-flight", uid, detail)


def _share(values: tuple[Any, ...], index: int, count: int) -> tuple[Any, ...]:
    """Part `index` of `values`, divided in order into `count` parts of about equal size."""
    return values[index * len(values) // count : (index + 1) * len(values) // count]


def _keys() -> SigningKeys:
    try:
        return parse_keys(os.environ.get(MANIFEST_KEY_VARIABLE, ""))
    except ValueError as error:
        raise JobRejected("bad-manifest-key", MANIFEST_KEY_VARIABLE, str(error)) from error


def _free_folder(folder: str) -> Path:
    target = Path(folder)
    if not target.is_absolute():
        raise JobRejected("bad-folder", "folder", f"must be the absolute path of a folder, not {folder!r}")
    if target.exists():
        raise JobRejected("folder-exists", "folder", f"{folder} exists already; a savepoint needs a new folder")
    return target


def _rename_durably(staging: Path, target: Path) -> None:
    """Renames atomically and durably, so that a partial savepoint is never visible."""
    try:
        staging.rename(target)
        sync_path(target.parent)
    except OSError as error:
        raise EnvironmentFailure(f"{target} cannot be written: {error}") from error
