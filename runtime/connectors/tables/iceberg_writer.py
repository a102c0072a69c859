"""The writer of an Iceberg sink: Parquet files in the table's data folder, with Iceberg's field ids."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlparse

import pyarrow as pa

from runtime.connectors.tables.data_folder import DataFolder, data_folder_at
from runtime.connectors.tables.iceberg_catalog import create_together, load_table, open_catalog
from runtime.connectors.tables.iceberg_table import (
    PartitionKey,
    check_columns,
    file_columns,
    iceberg_schema,
    partition_keys,
    partition_spec,
)
from runtime.connectors.tables.table_writer import TableWriter, check_required, split
from runtime.errors import DataRejected, JobRejected
from runtime.ports import OperatorContext
from runtime.s3 import is_bucket


class IcebergWriter(TableWriter):
    """Writes a file per checkpoint and partition. The first row creates the table if it is missing."""

    def __init__(
        self,
        name: str,
        catalog_name: str,
        catalog: Mapping[str, str],
        partition_by: Sequence[str],
    ) -> None:
        super().__init__()
        self._name, self._partition_by = name, tuple(partition_by)
        self._address = (catalog_name, catalog)
        self._arrow: pa.Schema | None = None  #: columns of the files
        self._keys: list[PartitionKey] = []
        self._table: dict[str, Any] = {}  #: the table's part of a committable

    def open(self, context: OperatorContext) -> None:
        """Connects to the catalog, so that a wrong address fails the job before the first row."""
        super().open(context)
        with open_catalog(*self._address) as catalog:
            load_table(catalog, self._name)

    def adopt(self, schema: pa.Schema) -> None:
        with open_catalog(*self._address) as catalog:
            table = load_table(catalog, self._name) or self._create(catalog, schema)
        check_columns(table, schema, self._partition_by)
        arrow = file_columns(table, schema)
        described = {
            "table": str(table.metadata.table_uuid),
            "name": self._name,
            "schema": table.schema().schema_id,
            "spec": table.spec().spec_id,
        }
        if self._arrow is not None and (arrow != self._arrow or described != self._table):
            problem = "the columns of the stream or the table have changed: restart the job"
            raise JobRejected("schema-mismatch", "table", f"{self._name}: {problem}")
        self.folder = data_folder(table)
        self.folder.make()
        self._keys = partition_keys(table, arrow)
        self._arrow, self._table = arrow, described

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        assert self._arrow is not None, "adopted"
        batch = batch.select(self._arrow.names)
        check_required(self._name, batch, [field.name for field in self._arrow if not field.nullable])
        try:
            return batch.cast(self._arrow)
        except pa.ArrowInvalid as error:
            raise DataRejected(f"{self._name}: a value does not fit its column of the table: {error}") from error

    def partitions(self, batch: pa.RecordBatch) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
        return split(batch, [key.apply(batch.column(key.column)) for key in self._keys])

    def partition_json(self, values: tuple[Any, ...]) -> list[Any]:
        return list(values)

    def table_json(self) -> Mapping[str, Any]:
        return self._table

    def _create(self, catalog: Any, schema: pa.Schema) -> Any:
        """The empty table, perhaps created by another writer in between."""
        columns = iceberg_schema(schema)
        spec = partition_spec(columns, self._partition_by)

        def create() -> Any:
            if (table := load_table(catalog, self._name)) is not None:
                return table
            catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
            return catalog.create_table(self._name, columns, partition_spec=spec)

        return create_together(self._name, create)


def data_folder(table: Any) -> DataFolder:
    """The folder of the table's data files.

    Raises:
        JobRejected: data or metadata lie in a store of another kind, or where jobs may not write.
    """
    places = table.location_provider()
    _folder_at(table, places.metadata_path).check()  # the library writes there with the credentials of this host
    folder = _folder_at(table, places.data_path)
    folder.check()
    return folder


def _folder_at(table: Any, location: str) -> DataFolder:
    if is_bucket(location):
        return data_folder_at("catalog", location)
    place = urlparse(location)
    if place.scheme not in ("", "file") or place.netloc:
        name = ".".join(table.name())
        problem = (
            f"lies at {place.scheme}://{place.netloc}: this sink writes to folders and to s3://; mount the storage"
        )
        raise JobRejected("unsupported-table", "table", f"{name} {problem}")
    return data_folder_at("catalog", place.path)
