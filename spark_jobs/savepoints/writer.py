"""Savepoints that no running job has taken: made from DataFrames, or from another savepoint, by Spark tasks.

    writer = SavepointWriter.new_savepoint(spark, flow, job=7)
    writer.bootstrap_operator("counts", history)              # the operator processes these rows; its output is dropped
    writer.write("/savepoints/counts-of-last-year")

    writer = SavepointWriter.from_savepoint(spark, "/storage/7/savepoint-12-3")
    writer.remove_operator("alerts").rename_operator("counts", "counts-by-user")
    writer.rekey_operator("seen", lambda user: user.lower(), pa.schema([("user", pa.string())]))
    writer.change_max_parallelism(512).write("/savepoints/moved")

The folder is restored like any savepoint that was copied: by its path. Until it is whole it has a hidden name beside
its own, and no manifest: nothing half-written can be restored. It is signed where `WEIR_MANIFEST_KEY` is set. (Flink's
State Processor API: `SavepointWriter`.)
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

from runtime.core.checkpoint import FinishedState, Manifest, OperatorSnapshot, SubtaskSnapshot
from runtime.core.envelope import FILE_NAME, Keys, home_of, keys_of, sealed
from runtime.core.graph import check_uid
from runtime.core.keygroups import MAX_KEY_GROUPS
from runtime.core.mapping import MappingReport, Target, report
from runtime.core.messages import CheckpointKind
from runtime.dataflow import Dataflow
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.io.clock import SystemClock
from runtime.io.filesystem import FileStore
from runtime.state.lists import OperatorList
from runtime.state.store import LIST, UNION_LIST
from spark_jobs.savepoints.bootstrap import Bootstrap, Function
from spark_jobs.savepoints.declared import check_state, declared_state
from spark_jobs.savepoints.execute import BootstrapRows, Execution, rows_for_operator, rows_for_table
from spark_jobs.savepoints.redeal import Redeal, Rekey, check_rekey
from spark_jobs.savepoints.table_rows import TableRows
from spark_jobs.state_rows import Opened, open_checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from runtime.blueprint import CompiledJob

MANIFEST_KEY: Final = "WEIR_MANIFEST_KEY"
SUBTASKS: Final = 16  #: that bootstrapped state is cut into; one lies in the memory of a Spark task
_FIRST_NUMBER: Final = 1
_VARIANT_BYTES: Final = 4


@dataclass(frozen=True, kw_only=True)
class WrittenSavepoint:
    """`report` says what a restore into the job would do; None where no job was given."""

    folder: str
    manifest: Manifest
    report: MappingReport | None


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """An operator of the savepoint that is read. `source`: its uid there."""

    source: str
    rekey: Rekey | None = None
    origins: tuple[str, ...] = ()


@dataclass(kw_only=True)
class _Made:
    """An operator that the savepoint is given: `rows` by state, or for all of it under ""."""

    subtasks: int
    rows: dict[str, BootstrapRows] = field(default_factory=dict)
    lists: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    unions: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def operator(self, made: dict[int, SubtaskSnapshot]) -> OperatorSnapshot:
        """With a share of each list in every subtask, and union lists in the first."""
        for index in range(self.subtasks) if self.lists or self.unions else ():
            shares = {name: _share(values, index, self.subtasks) for name, values in self.lists.items()}
            unions = {name: values if index == 0 else () for name, values in self.unions.items()}
            before = made.get(index, SubtaskSnapshot())
            made = {**made, index: msgspec.structs.replace(before, lists=shares, unions=unions)}
        return OperatorSnapshot(
            parallelism=self.subtasks, finished=FinishedState.RUNNING, subtasks=made, origin="bootstrapped from rows"
        )


@dataclass(kw_only=True)
class SavepointWriter:
    """Collects changes; `write` makes the savepoint. Made by `new_savepoint` or `from_savepoint`."""

    _spark: SparkSession
    _job: str
    _max_parallelism: int
    _compiled: CompiledJob | None
    _opened: Opened | None
    _keys: Keys
    _kept: dict[str, _Kept] = field(default_factory=dict)
    _made: dict[str, _Made] = field(default_factory=dict)

    @classmethod
    def new_savepoint(cls, spark: SparkSession, flow: Dataflow, *, job: str | int | None = None) -> Self:
        """An empty savepoint.

        Args:
            flow: the job that will be restored from it.
            job: the id of the job in the console; None: the name of `flow`, for `run_local`.

        Raises:
            JobRejected: the job cannot run.
        """
        return cls(
            _spark=spark, _job=flow.name if job is None else str(job), _max_parallelism=flow.max_parallelism,
            _compiled=flow.compile(1), _opened=None, _keys=_keys(),
        )  # fmt: skip

    @classmethod
    def from_savepoint(
        cls, spark: SparkSession, path: str, *, flow: Dataflow | None = None, job: str | int | None = None
    ) -> Self:
        """What the checkpoint or savepoint in folder `path` holds.

        Args:
            flow: the job that will be restored from the result; with it the result is checked, and operators are
                bootstrapped.
            job: as above; None: the job that took it.

        Raises:
            CorruptState: missing, truncated, altered or not a manifest; the file is named.
            JobRejected: it is not signed with a key of ours, or cannot be read where it lies.
        """
        keys = _keys()
        opened = open_checkpoint(path, keys)
        manifest = opened.manifest
        return cls(
            _spark=spark, _job=manifest.job if job is None else str(job), _max_parallelism=manifest.max_parallelism,
            _compiled=None if flow is None else flow.compile(1), _opened=opened, _keys=keys,
            _kept={uid: _Kept(source=uid) for uid in manifest.operators},
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
        subtasks: int = SUBTASKS,
    ) -> Self:
        """Gives an operator the state that it has after it has processed `rows`; its output is dropped.

        No event time passes: timers are set and do not fire; windows are open and fire in the restored job.

        Args:
            uid: a process function behind `key_by`, an aggregate or a window.
            rows: those that come to the operator in the job.
            function: a process function that fills the same states in place of the operator's own.
            columns: the columns of `rows` to use and the Arrow types that they have in the job, where Spark's differ.
            order_by: columns that order the rows of a key; default: event time, where the operator has it.
            subtasks: how many parts the state is cut into. One must fit into the memory of a Spark task.

        Raises:
            JobRejected: there is no such operator, it has state already, or a column is missing; all are named.
        """
        job, made = self._made_for(uid, "", subtasks)
        bootstrap = Bootstrap(job=job, uid=uid, function=function, parallelism=made.subtasks)
        made.rows[""] = rows_for_operator(bootstrap, rows, columns, order_by)
        self._made[uid] = made
        return self

    def write_state(
        self, uid: str, state: str, rows: DataFrame, *, columns: pa.Schema | None = None, subtasks: int = SUBTASKS
    ) -> Self:
        """Gives a state with typed columns its rows, one for each key: aggregates, windows, positions of a source.

        Args:
            uid: an operator or a source.
            rows: the columns of the state, as `weir-state` reads them; others are ignored.
            columns: Arrow types of columns where the job does not name them and Spark's differ.
            subtasks: as above; the same for all states of an operator.

        Raises:
            JobRejected: there is no such operator or state, it has no columns, or the rows lack one; all are named.
        """
        job, made = self._made_for(uid, state, subtasks)
        made.rows[state] = rows_for_table(TableRows.of(job, uid, state, made.subtasks), rows, columns)
        self._made[uid] = made
        return self

    def write_list(self, uid: str, name: str, values: Sequence[Any], *, subtasks: int = SUBTASKS) -> Self:
        """Gives a list or union list of an operator its values, which are JSON. A restore deals those of a list.

        Raises:
            JobRejected: there is no such operator or list, or a value is no JSON; all are named.
        """
        job, made = self._made_for(uid, name, subtasks)
        declared = declared_state(job, uid)
        check_state(declared, uid, name)
        kind = declared.kinds[name]
        if kind not in (LIST, UNION_LIST):
            raise JobRejected("cannot-bootstrap", uid, f"state {name!r} is {kind}, and no list")
        (made.lists if kind == LIST else made.unions)[name] = OperatorList(name, values).capture()
        self._made[uid] = made
        return self

    def _made_for(self, uid: str, state: str, subtasks: int) -> tuple[CompiledJob, _Made]:
        """The job at the savepoint's max parallelism, and what the operator has been given so far."""
        if self._compiled is None:
            detail = "give the job too, to bootstrap an operator: SavepointWriter.from_savepoint(…, flow=…)"
            raise JobRejected("no-job", uid, detail)
        if not 0 < subtasks <= MAX_KEY_GROUPS:
            raise JobRejected("bad-parallelism", "subtasks", f"must lie between 1 and {MAX_KEY_GROUPS}, not {subtasks}")
        made = self._made.get(uid, _Made(subtasks=min(subtasks, self._max_parallelism)))
        given = {*made.rows, *made.lists, *made.unions}
        if uid in self._kept or "" in given or (state == "" and made.rows):
            raise JobRejected("operator-exists", uid, "the savepoint has this operator already: remove it first")
        if state in given:
            raise JobRejected("duplicate-state", uid, f"state {state!r} is written twice")
        if made.subtasks != min(subtasks, self._max_parallelism):
            detail = f"its states are cut into {made.subtasks} subtasks, so all must be"
            raise JobRejected("bad-parallelism", uid, detail)
        graph = replace(self._compiled.graph, max_parallelism=self._max_parallelism)
        return replace(self._compiled, graph=graph), made

    def remove_operator(self, uid: str) -> Self:
        """Drops an operator with all its state.

        Raises:
            JobRejected: there is no such operator, or it holds output that is not committed yet.
        """
        if self._made.pop(uid, None) is None:
            kept = self._find(uid)
            if any(snapshot.committables for snapshot in self._snapshot(kept).subtasks.values()):
                detail = "it holds output that is not committed yet, which would be lost"
                raise JobRejected("unmapped-output", uid, detail)
            del self._kept[uid]
        return self

    def rename_operator(self, uid: str, new_uid: str) -> Self:
        """Gives the state of an operator to the operator `new_uid`.

        Raises:
            JobRejected: there is no such operator, or another one has that uid.
        """
        kept = self._find(uid)
        check_uid(new_uid)
        if new_uid in self._kept or new_uid in self._made:
            raise JobRejected("operator-exists", new_uid, "the savepoint has an operator of this uid already")
        origins = (*kept.origins, f"renamed from {uid!r}")
        self._kept = {
            new_uid if name == uid else name: replace(each, origins=origins) if name == uid else each
            for name, each in self._kept.items()
        }
        return self

    def rekey_operator(self, uid: str, function: Callable[[Any], Any], keys: pa.Schema) -> Self:
        """Moves all keyed state of an operator to other keys. Two keys must not become one.

        Args:
            function: gets the value of the key column, or a tuple when there are several; returns the new key likewise.
            keys: the new key columns with their Arrow types, as the job has them.

        Raises:
            JobRejected: there is no such operator, or a column cannot be a key.
        """
        kept = self._find(uid)
        check_rekey(uid, keys)
        if kept.rekey is not None:
            raise JobRejected("re-keyed-twice", uid, "it is re-keyed already: do both in one function")
        origins = (*kept.origins, f"re-keyed by {', '.join(keys.names)}")
        self._kept[uid] = replace(kept, rekey=Rekey(function, keys), origins=origins)
        return self

    def change_max_parallelism(self, max_parallelism: int) -> Self:
        """Deals all keyed state to another number of key groups. Comes before what is bootstrapped.

        Raises:
            JobRejected: out of range, or below the parallelism of an operator in the savepoint.
        """
        most = max((self._snapshot(kept).parallelism for kept in self._kept.values()), default=1)
        if not most <= max_parallelism <= MAX_KEY_GROUPS:
            detail = f"must lie between the parallelism of the savepoint, {most}, and {MAX_KEY_GROUPS}"
            raise JobRejected("bad-max-parallelism", "max_parallelism", f"{detail}, not {max_parallelism}")
        if self._made:
            detail = "change it before operators are bootstrapped"
            raise JobRejected("bad-max-parallelism", "max_parallelism", detail)
        self._max_parallelism = max_parallelism
        return self

    # ------------------------------------------------------------ writing

    def write(self, folder: str) -> WrittenSavepoint:
        """Makes the savepoint in `folder`, which must not be there. After an error nothing is.

        Raises:
            JobRejected: the savepoint does not fit the job, rows are refused, or the folder is taken.
            WeirError: a task failed for good; the operator is named.
        """
        target = _free_folder(folder)
        staging = target.with_name(f".{target.name}.{secrets.token_hex(_VARIANT_BYTES)}")
        try:
            manifest = self._stored(str(staging))
            found = self._checked(manifest)
            FileStore(staging).put(FILE_NAME, [sealed(manifest, self._keys)])
            _move(staging, target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return WrittenSavepoint(folder=str(target), manifest=manifest, report=found)

    def _stored(self, staging: str) -> Manifest:
        """Stores all state; the manifest names files by their path in the job's storage."""
        Path(staging).mkdir(mode=0o700, parents=True)
        execution = Execution(self._spark, staging)
        operators = {uid: self._keep(uid, kept, execution) for uid, kept in self._kept.items()}
        for rows in (rows for given in self._made.values() for rows in given.rows.values()):
            execution.bootstrap(rows)
        made = execution.run()
        operators |= {uid: given.operator(made.snapshots.get(uid, {})) for uid, given in self._made.items()}
        for uid in made.dealt:
            operators[uid] = made.with_dealt(uid, operators[uid])
        manifest = self._manifest(operators)
        execution.tidy(manifest)
        home = f"{home_of(manifest)}/"
        return manifest.with_segments(lambda segment: msgspec.structs.replace(segment, path=home + segment.path))

    def _keep(self, uid: str, kept: _Kept, execution: Execution) -> OperatorSnapshot:
        """Deals the keyed state anew where that is needed, and copies the files of the rest."""
        assert self._opened is not None, "what is kept was read"
        held, before = self._snapshot(kept), self._opened.manifest.max_parallelism
        origins = kept.origins
        is_finished = held.finished is FinishedState.FINISHED
        if (kept.rekey is not None or before != self._max_parallelism) and not is_finished:
            redeal = Redeal(
                opened=self._opened,
                uid=kept.source,
                parallelism=held.parallelism,
                max_parallelism=self._max_parallelism,
                rekey=kept.rekey,
            )
            if redeal.states:
                execution.redeal(uid, redeal)
                subtasks = {i: msgspec.structs.replace(one, keyed={}) for i, one in held.subtasks.items()}
                held = msgspec.structs.replace(held, subtasks=subtasks)
                if before != self._max_parallelism:
                    origins = (*origins, f"dealt to {self._max_parallelism} key groups, of {before} before")
        subtasks = {index: execution.copy(self._opened, uid, one) for index, one in held.subtasks.items()}
        origin = "; ".join(filter(None, [held.origin, *origins]))
        return msgspec.structs.replace(held, subtasks=subtasks, origin=origin)

    def _manifest(self, operators: dict[str, OperatorSnapshot]) -> Manifest:
        before = None if self._opened is None else self._opened.manifest
        kind = CheckpointKind.SAVEPOINT
        if before is not None and before.kind.is_savepoint:
            kind = before.kind
        return Manifest(
            job=self._job,
            checkpoint=_FIRST_NUMBER if before is None else before.checkpoint,
            kind=kind,
            token=0,
            variant=secrets.token_hex(_VARIANT_BYTES),
            triggered_at=SystemClock().now_ms(),
            max_parallelism=self._max_parallelism,
            operators=operators,
        )

    def _checked(self, manifest: Manifest) -> MappingReport | None:
        """The report of a restore into the job; a savepoint that could not be restored is not written."""
        if self._compiled is None:
            return None
        found = report(manifest, Target.of(self._compiled.graph), self._job)
        problem = found.refusal(allow_unmapped=False)
        if problem is not None:
            raise JobRejected(problem.code, problem.field, problem.detail)
        return found

    def _find(self, uid: str) -> _Kept:
        if uid not in self._kept:
            known = ", ".join(sorted(self._kept)) or "none"
            raise JobRejected("unknown-operator", uid, f"the savepoint has no operator {uid!r}; there are: {known}")
        return self._kept[uid]

    def _snapshot(self, kept: _Kept) -> OperatorSnapshot:
        assert self._opened is not None, "what is kept was read"
        return self._opened.manifest.operators[kept.source]


def _share(values: tuple[Any, ...], index: int, count: int) -> tuple[Any, ...]:
    """One of `count` parts, in order."""
    return values[index * len(values) // count : (index + 1) * len(values) // count]


def _keys() -> Keys:
    try:
        return keys_of(os.environ.get(MANIFEST_KEY, ""))
    except ValueError as error:
        raise JobRejected("bad-manifest-key", MANIFEST_KEY, str(error)) from error


def _free_folder(folder: str) -> Path:
    target = Path(folder)
    if not target.is_absolute():
        raise JobRejected("bad-folder", "folder", f"must be the absolute path of a folder, not {folder!r}")
    if target.exists():
        raise JobRejected("folder-exists", "folder", f"{folder} is there already; a savepoint gets a new folder")
    return target


def _move(staging: Path, target: Path) -> None:
    """The savepoint appears whole, or not at all."""
    try:
        staging.rename(target)
        descriptor = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise EnvironmentFailure(f"{target} cannot be written: {error}") from error
