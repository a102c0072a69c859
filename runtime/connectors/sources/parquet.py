"""A folder of Parquet files as a bounded source, for example the materialised output of a PySpark stage."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from runtime.connectors.formats import ParquetFormat
from runtime.connectors.sources.directory import DEFAULT_SPLIT_BYTES, DirectoryReader, DirectorySource
from runtime.connectors.sources.partition_columns import PartitionBy


@dataclass(frozen=True)
class ParquetSource:
    """Reads every file that exists at the start, then ends.

    Args:
        path: the folder.
        schema: the wanted columns; None: all columns.
        columns, filter, partition_by, split_bytes: see `DirectorySource`.
    """

    guarantee: ClassVar[str] = "exactly-once"
    bounded: ClassVar[bool] = True
    has_event_time: ClassVar[bool] = False

    path: str
    schema: pa.Schema | None = None
    columns: tuple[str, ...] | None = None
    filter: pc.Expression | None = field(default=None, compare=False)  # expressions have no equality
    partition_by: PartitionBy = ()
    split_bytes: int | None = DEFAULT_SPLIT_BYTES

    def output_columns(self) -> pa.Schema | None:
        return self._as_directory().output_columns()

    def with_used_columns(self, used: frozenset[str]) -> DirectorySource:
        return self._as_directory().with_used_columns(used)

    def with_encoded_texts(self) -> DirectorySource:
        return self._as_directory().with_encoded_texts()

    def reader(self) -> DirectoryReader:
        return self._as_directory().reader()

    def check(self) -> None:
        self._as_directory().check()

    def folders(self) -> Mapping[str, str]:
        return self._as_directory().folders()

    def urls(self) -> Mapping[str, str]:
        return self._as_directory().urls()

    def list_input(self) -> bytes | None:
        return self._as_directory().list_input()

    def with_input(self, listing: bytes) -> DirectorySource:
        return self._as_directory().with_input(listing)

    def _as_directory(self) -> DirectorySource:
        return DirectorySource(
            self.path,
            ParquetFormat(self.schema),
            bounded=True,
            columns=self.columns,
            filter=self.filter,
            partition_by=self.partition_by,
            split_bytes=self.split_bytes,
        )
