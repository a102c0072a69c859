"""Rows appended to an Iceberg table, exactly once.

Slots write Parquet files into the table's data folder. Readers see a file only when a snapshot names it. The job master
adds the files of a checkpoint by a single snapshot, so a reader sees all rows of a checkpoint or none. The summary of
the snapshot names job, sink and checkpoint.

The commit of a snapshot also changes a property of the table that records the commits of the sink
(`iceberg_commits`). A repeated commit reads the record first and leaves out committed files. A commit is valid only on
top of the snapshot whose record it has read: another commit in between makes the catalog refuse it.

The clean-up of a new attempt adds an empty snapshot with a new record before it deletes a file. From then on, a master
of an older attempt can commit nothing, even if it was stopped just before its commit.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final
from urllib.parse import urlparse

from runtime.connectors.tables.data_files import (
    OWNER,
    abort_uploads_before,
    check_committable,
    files_before,
    newest_numbers,
    own_committables,
)
from runtime.connectors.tables.data_folder import DataFolder, data_folder_at
from runtime.connectors.tables.iceberg_catalog import check_catalog, iceberg_errors, load_table, open_catalog
from runtime.connectors.tables.iceberg_commits import IcebergCommitRecord
from runtime.connectors.tables.iceberg_table import parse_partition
from runtime.connectors.tables.iceberg_writer import IcebergWriter, data_folder
from runtime.core.job.ids import Token
from runtime.core.snapshot.commit import CommitPermit
from runtime.errors import EnvironmentFailure, JobRejected
from runtime.libraries import import_library
from runtime.ports import SinkCommitter

MAX_CONFLICTS: Final = 20  #: commits in a row that other writers of the table may win


@dataclass(frozen=True)
class IcebergSink:
    """Appends rows to an Iceberg table. The first row creates the table if it is missing.

    Every column of the stream must be in the table with the same type. Needs the extra `iceberg`.

    Args:
        table: namespace and name, such as `sales.orders`.
        catalog: properties of the catalog as pyiceberg takes them, such as `type`, `uri` and `warehouse`. `uri`,
            `token` and `credential` may contain `${secret:NAME}`. `warehouse` is a folder or `s3://bucket/prefix`.
        catalog_name: name of the catalog. A catalog in a database can hold several.
        partition_by: partitions of a new table: columns, or `years(at)`, `months(at)`, `days(at)`, `hours(at)`. Empty:
            those of the existing table.
    """

    guarantee: ClassVar[str] = "exactly-once"
    has_independent_writers: ClassVar[bool] = True

    table: str
    catalog: Mapping[str, str] = field(repr=False)
    catalog_name: str = "default"
    partition_by: Sequence[str] = ()

    def writer(self) -> IcebergWriter:
        return IcebergWriter(self.table, self.catalog_name, self.catalog, self.partition_by)

    def committer(self) -> "IcebergCommitter":
        return IcebergCommitter(self.table, self.catalog_name, self.catalog)

    def check(self) -> None:
        if not isinstance(self.table, str) or not all(self.table.split(".")) or "." not in self.table:
            raise JobRejected("bad-table", "table", "must be a namespace and a name, such as sales.orders")
        check_catalog(self.catalog)
        if isinstance(self.partition_by, str) or len(set(self.partition_by)) != len(self.partition_by):
            raise JobRejected("bad-partition", "partition_by", "must be a list of distinct columns")
        for expression in self.partition_by:
            parse_partition(expression)
        import_library("pyiceberg.catalog", "iceberg")

    def folders(self) -> Mapping[str, str]:
        place = urlparse(self.catalog.get("warehouse", ""))
        return {"catalog": place.path} if place.scheme in ("", "file") and place.path else {}


class IcebergCommitter(SinkCommitter):
    """Adds written files to the table."""

    commits_in_master = True

    def __init__(self, name: str, catalog_name: str, catalog: Mapping[str, str]) -> None:
        self._name, self._address = name, (catalog_name, catalog)

    def commit(self, permit: CommitPermit, committables: Sequence[Any]) -> int:
        """Adds the files of all committables that are not in the table yet, by a single snapshot.

        Raises:
            EnvironmentFailure: a file is missing, the catalog failed, or other writers have won every commit.
            JobRejected: the table is gone, another one or partitioned otherwise; or a newer attempt writes to it.
        """
        pending = [check_committable(committable, permit.job) for committable in committables]
        if not pending:
            return 0
        with open_catalog(*self._address) as catalog:
            return self._commit(catalog, permit, pending)

    def _commit(self, catalog: Any, permit: CommitPermit, pending: Sequence[Mapping[str, Any]]) -> int:
        conflict = import_library("pyiceberg.exceptions", "iceberg").CommitFailedException
        for _ in range(MAX_CONFLICTS):
            table = load_table(catalog, self._name)
            here = self._of_table(catalog, table, pending)
            if not here:
                return 0
            job, uid = _sink_of(here[0])
            record = IcebergCommitRecord.of(table, job, uid)
            record.refuse_older(permit.token)
            due = [each for each in here if not record.is_committed(each)]
            if not due:
                return 0
            files = self._data_files(table, due)
            summary = {
                "weir.job": permit.job,
                "weir.sink": uid,
                "weir.checkpoint": str(permit.checkpoint),
                "weir.token": str(permit.token),
            }
            with iceberg_errors(self._name):
                try:
                    self._append(table, files, record.after(newest_numbers(due), permit.token), summary)
                    return len(due)
                except conflict:
                    continue  # the table has changed, perhaps by a commit of the same files
        raise EnvironmentFailure(f"{self._name}: other writers of the table have won {MAX_CONFLICTS} commits")

    def missing(self, committables: Sequence[Any]) -> list[str]:
        lost = [
            (each, f"{folder.location}/{file['path']}")
            for each in committables
            for file in each["files"]
            if not (folder := data_folder_at("catalog", each["folder"])).has(file["path"])
        ]
        if not lost:
            return []
        with open_catalog(*self._address) as catalog:
            table = load_table(catalog, self._name)
        if table is None:
            return [path for _, path in lost]
        return [path for each, path in lost if not IcebergCommitRecord.of(table, *_sink_of(each)).is_committed(each)]

    def clean(self, job: str, uid: str, token: Token, keep: Sequence[Any]) -> int:
        """Refuses commits of older attempts from now on, and removes files that no commit and no manifest names."""
        with open_catalog(*self._address) as catalog:
            output_ids = {(each["owner"], each["number"]) for each in own_committables(keep)}
            return self._clean(catalog, job, uid, token, output_ids)

    def _clean(self, catalog: Any, job: str, uid: str, token: Token, output_ids: Set[tuple[str, int]]) -> int:
        table = load_table(catalog, self._name)
        if table is None:
            return 0
        conflict = import_library("pyiceberg.exceptions", "iceberg").CommitFailedException
        folder = data_folder(table)
        abort_uploads_before(folder, job, uid, token)
        for _ in range(MAX_CONFLICTS):
            record = IcebergCommitRecord.of_sink(table, job, uid)
            leftovers = [
                file
                for file in files_before(folder, job, uid, token)
                if (file.owner, file.number) not in output_ids and not record.is_settled(file.owner, file.number)
            ]
            if record.token >= token:
                break
            if not leftovers and not record.token:
                return 0  # the sink has never written to the table
            # A writer is forgotten once its leftovers are gone: an interrupted clean-up can then be continued.
            remembered = {owner for owner, _ in output_ids} | {file.owner for file in leftovers}
            with iceberg_errors(self._name):
                try:
                    self._append(
                        table, [], record.without_older(token, remembered), {"weir.job": job, "weir.sink": uid}
                    )
                    break
                except conflict:
                    table = load_table(catalog, self._name)
        else:
            raise EnvironmentFailure(f"{self._name}: other writers of the table have won {MAX_CONFLICTS} commits")
        return self._delete(catalog, folder, [file.name for file in leftovers])

    def _delete(self, catalog: Any, folder: DataFolder, names: Sequence[str]) -> int:
        """Deletes files, except files that a snapshot names: the record of commits may have been removed by hand."""
        if not names:
            return 0
        with iceberg_errors(self._name):
            unnamed = set(names) - _named_files(load_table(catalog, self._name))
        folder.delete(sorted(unnamed))
        return len(unnamed)

    # ------------------------------------------------------------ the table

    def _append(
        self, table: Any, files: Sequence[Any], record: IcebergCommitRecord, summary: Mapping[str, str]
    ) -> None:
        """Commits a snapshot on top of the current one of `table`, unless another snapshot has replaced that one."""
        # The library would otherwise repeat a refused commit on top of the new snapshot, without reading the record.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        with table.transaction() as transaction:
            with transaction.update_snapshot(dict(summary)).fast_append() as append:
                for file in files:
                    append.append_data_file(file)
            transaction.set_properties({record.key: record.text})

    def _of_table(self, catalog: Any, table: Any, pending: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The committables of the table. Committables of a former table must be committed there.

        A savepoint can be restored into another table. Its pending files have the former table's field ids, so they
        cannot be committed here.
        """
        here = [each for each in pending if table is not None and each["table"] == str(table.metadata.table_uuid)]
        for each in pending:
            if each in here:
                continue
            former = load_table(catalog, each["name"])
            if former is None or str(former.metadata.table_uuid) != each["table"]:
                problem = f"output of a checkpoint belongs to the table {each['name']}, which was dropped or replaced"
                remedy = "bring the table back, or start the job without this checkpoint"
                raise JobRejected("no-table", "table", f"{problem}: {remedy}")
            if not IcebergCommitRecord.of(former, *_sink_of(each)).is_committed(each):
                problem = f"output of the checkpoint is pending for the table {each['name']}, not for {self._name}"
                raise JobRejected("other-table", "table", f"{problem}: restore it into that table first")
        return here

    def _data_files(self, table: Any, due: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The files as a snapshot names them, with the statistics of their footers."""
        folder = data_folder(table)
        for each in due:
            if each["spec"] != table.spec().spec_id:
                problem = f"{self._name} was partitioned otherwise when files for a checkpoint were written"
                raise JobRejected(
                    "unsupported-table", "table", f"{problem}: set the former partitioning until they are in"
                )
        files = [_data_file(table, each, folder, file) for each in due for file in each["files"]]
        folder.sync()
        return files


def _named_files(table: Any) -> set[str]:
    """Names of the files of all snapshots of the table."""
    manifests = {
        manifest.manifest_path: manifest for snapshot in table.snapshots() for manifest in snapshot.manifests(table.io)
    }
    return {
        entry.data_file.file_path.rpartition("/")[2]
        for manifest in manifests.values()
        for entry in manifest.fetch_manifest_entry(table.io)
    }


def _data_file(table: Any, committable: Mapping[str, Any], folder: DataFolder, file: Mapping[str, Any]) -> Any:
    folder.check_file(file)
    manifest = import_library("pyiceberg.manifest", "iceberg")
    statistics = _statistics(table, table.schemas()[committable["schema"]], folder, file)
    record = import_library("pyiceberg.typedef", "iceberg").Record
    return manifest.DataFile.from_args(
        content=manifest.DataFileContent.DATA,
        file_path=f"{table.location_provider().data_path}/{file['path']}",
        file_format=manifest.FileFormat.PARQUET,
        partition=record(*file["partition"]),
        file_size_in_bytes=file["bytes"],
        sort_order_id=None,
        spec_id=committable["spec"],
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _statistics(table: Any, schema: Any, folder: DataFolder, file: Mapping[str, Any]) -> Any:
    """Counts and bounds of the columns of a file. Without bounds if a time lies outside the years 1 to 9999."""
    library = import_library("pyiceberg.io.pyarrow", "iceberg")
    plan = library.compute_statistics_plan(schema, table.properties)
    compute = partial(
        library.data_file_statistics_from_parquet_metadata,
        parquet_metadata=folder.parquet_metadata(file),
        parquet_column_mapping=library.parquet_path_to_id_mapping(schema),
    )
    with iceberg_errors(f"{folder.location}/{file['path']}"):
        try:
            return compute(stats_columns=plan)
        except OverflowError:  # the library computes bounds as values of Python, which has no such time
            counts = library.MetricsMode(library.MetricModeTypes.COUNTS)
            return compute(stats_columns={number: replace(column, mode=counts) for number, column in plan.items()})


def _sink_of(committable: Mapping[str, Any]) -> tuple[str, str]:
    """Job and uid as parts of file names."""
    match = OWNER.fullmatch(committable["owner"])
    assert match is not None, "checked before"
    return match["job"], match["uid"]
