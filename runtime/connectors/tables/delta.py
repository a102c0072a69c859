"""Rows appended to a Delta table, exactly once.

Slots write Parquet files into the table's folder, which may be a prefix of a bucket. Readers see a file only when the
table's log names it. The job master adds the files of a checkpoint to the log by a single Delta commit, so a reader
sees all rows of a checkpoint or none.

The commit also contains a transaction identifier (Delta protocol, action `txn`) for each writer: the number of its last
committed files. A repeated commit reads the identifiers first and leaves out committed files. The log refuses two
concurrent commits with the same identifier, so a master of an older attempt cannot add a file a second time.

Before the clean-up deletes leftovers of a writer, it raises the writer's identifier above them. A commit of a deleted
file is therefore impossible, even by a master that was stopped just before its commit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from runtime.connectors.bucket import check_place
from runtime.connectors.tables.data_files import (
    abort_uploads_before,
    check_committable,
    files_before,
    newest_numbers,
    own_committables,
)
from runtime.connectors.tables.data_folder import data_folder_at
from runtime.connectors.tables.delta_table import check_columns, check_store, delta_errors, load_table, storage_options
from runtime.connectors.tables.delta_writer import DeltaWriter
from runtime.core.job.ids import Token
from runtime.core.snapshot.commit import CommitPermit
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.libraries import import_library
from runtime.ports import SinkCommitter
from runtime.s3 import is_bucket

MAX_CONFLICTS: Final = 20  #: commits in a row that other writers of the table may win
_APPLICATION_PREFIX: Final = "weir-"


@dataclass(frozen=True)
class DeltaSink:
    """Appends rows to a Delta table. The first commit creates the table if it is missing.

    Every column of the stream must be in the table with the same type. Needs the extra `delta`.

    Args:
        path: folder of the table, or `s3://bucket/prefix`. A bucket also needs the extra `cloud`.
        partition_by: columns that partition the table: text, integers, booleans or dates. Delta reads empty text in
            such a column as null.
    """

    guarantee: ClassVar[str] = "exactly-once"
    has_independent_writers: ClassVar[bool] = True

    path: str
    partition_by: Sequence[str] = ()

    def writer(self) -> DeltaWriter:
        return DeltaWriter(self.path, self.partition_by)

    def committer(self) -> "DeltaCommitter":
        return DeltaCommitter(self.path, self.partition_by)

    def check(self) -> None:
        if not self.path:
            raise JobRejected("bad-path", "path", "must name the folder of the table")
        check_place("path", self.path)
        if isinstance(self.partition_by, str) or len(set(self.partition_by)) != len(self.partition_by):
            raise JobRejected("bad-partition", "partition_by", "must be a list of distinct columns")
        import_library("deltalake", "delta")

    def folders(self) -> Mapping[str, str]:
        return {} if is_bucket(self.path) else {"path": self.path}

    def urls(self) -> Mapping[str, str]:
        return {"path": self.path} if is_bucket(self.path) else {}


class DeltaCommitter(SinkCommitter):
    """Adds written files to the table's log."""

    commits_in_master = True

    def __init__(self, path: str, partition_by: Sequence[str]) -> None:
        self._files, self._partition_by = data_folder_at("path", path), tuple(partition_by)
        self._folder = self._files.location

    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        """Adds the files of all committables that are not in the log yet, by a single Delta commit.

        Raises:
            EnvironmentFailure: a file is missing, storage failed, or other writers have won every commit.
            JobRejected: the table has other columns or needs a writer of another kind.
        """
        self._files.check()
        pending = [check_committable(committable, permit.job) for committable in committables]
        conflict = import_library("deltalake.exceptions", "delta").CommitFailedError
        for _ in range(MAX_CONFLICTS):
            table = load_table(self._folder)
            due = [each for each in pending if not self._is_committed(table, each)]
            due = [each for each in due if not self._is_committed_in_former_folder(each)]
            if not due:
                return 0
            if table is None:
                self._create(due[0]["columns"])
                continue  # another master may have created it, and committed the same files
            for columns in {each["columns"] for each in due}:
                check_columns(self._folder, table, columns, self._partition_by)
            numbers = newest_numbers(due)
            actions = [self._add_action(file) for each in due for file in each["files"]]
            self._files.sync()
            with delta_errors(self._folder):
                try:
                    self._append(table, actions, numbers, {"weir.checkpoint": str(permit.checkpoint)})
                    return len(due)
                except conflict:
                    continue  # the table has changed, perhaps by a commit of the same files
        raise EnvironmentFailure(f"{self._folder}: other writers of the Delta table have won {MAX_CONFLICTS} commits")

    def missing(self, committables: Sequence[Any]) -> list[str]:
        names = [(each, file["path"]) for each in committables for file in each["files"]]
        lost = [(each, name) for each, name in names if not self._files.has(name)]
        table = load_table(self._folder) if lost else None
        return [f"{self._folder}/{name}" for each, name in lost if not self._is_committed(table, each)]

    def clean(self, job: str, uid: str, token: Token, keep: Sequence[Any]) -> int:
        """Removes files that no commit and no manifest names. Files of a writer with pending files in `keep` stay."""
        self._files.check()
        abort_uploads_before(self._files, job, uid, token)
        leftovers = files_before(self._files, job, uid, token)
        if not leftovers:
            return 0
        table = load_table(self._folder)
        owners = {each["owner"] for each in own_committables(keep) if not self._is_committed(table, each)}
        doomed: dict[str, int] = {}
        names = []
        for file in leftovers:
            if file.owner not in owners and file.number > self._committed_number(table, file.owner):
                doomed[file.owner] = max(file.number, doomed.get(file.owner, 0))
                names.append(file.name)
        if doomed and table is not None:
            with delta_errors(self._folder):
                self._append(table, [], doomed, {"weir.removed": str(len(names))})
        self._files.delete(names)
        return len(names)

    # ------------------------------------------------------------ the table

    def _create(self, columns: str) -> None:
        """Creates the empty table, unless another writer does so in between."""
        check_store(self._folder)
        with delta_errors(self._folder) as library:
            try:
                library.DeltaTable.create(
                    self._folder,
                    library.Schema.from_json(columns),
                    mode="ignore",
                    partition_by=list(self._partition_by),
                    storage_options=storage_options(self._folder),
                )
            except import_library("deltalake.exceptions", "delta").DeltaError:
                if load_table(self._folder) is None:
                    raise

    def _append(self, table: Any, actions: list[Any], numbers: Mapping[str, int], notes: Mapping[str, str]) -> None:
        """Commits on top of the version of `table`, unless another commit has changed one of the identifiers since."""
        check_store(self._folder)
        library = import_library("deltalake", "delta")
        transactions = [library.Transaction(_APPLICATION_PREFIX + owner, number) for owner, number in numbers.items()]
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            partition_by=list(self._partition_by) or None,
            commit_properties=library.CommitProperties(custom_metadata=dict(notes), app_transactions=transactions),
        )

    # ------------------------------------------------------------ files

    def _add_action(self, file: Mapping[str, Any]) -> Any:
        written_at_ms = self._files.check_file(file)
        return import_library("deltalake.transaction", "delta").AddAction(
            path=file["path"],
            size=file["bytes"],
            partition_values=file["partition"],
            modification_time=written_at_ms,
            data_change=True,
            stats=f'{{"numRecords": {int(file["rows"])}}}',
        )

    def _is_committed_in_former_folder(self, committable: Mapping[str, Any]) -> bool:
        """True if a savepoint is restored into another table and its files were committed to the former table.

        Files that are pending in the former folder are copied into this folder: the savepoint may be restored again.
        """
        names = [file["path"] for file in committable["files"]]
        former = DeltaCommitter(committable["folder"], self._partition_by)
        if former._folder == self._folder or all(map(self._files.has, names)):
            return False
        former._files.check()
        if former._is_committed(load_table(former._folder), committable):
            return True
        for name in names:
            if former._files.has(name):
                self._files.take(former._files, name)
        return False

    def _is_committed(self, table: Any, committable: Mapping[str, Any]) -> bool:
        """Whether the log of the table names the files, or names them as abandoned."""
        return bool(committable["number"] <= self._committed_number(table, committable["owner"]))

    def _committed_number(self, table: Any, owner: str) -> int:
        if table is None:
            return 0
        with delta_errors(self._folder):
            return table.transaction_version(_APPLICATION_PREFIX + owner) or 0
