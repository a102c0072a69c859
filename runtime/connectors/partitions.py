"""Hive-style partitions of files: a folder per value of the partition columns, such as `day=2024-01-01/country=CH`.

The names follow Hive's `FileUtils.makePartName`, which Spark shares (`ExternalCatalogUtils`): characters that are
special in paths are written as `%XX`, and null and the empty text as `__HIVE_DEFAULT_PARTITION__`. No value can
therefore name another folder. The files of a partition do not hold its columns: readers take them from the folder.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runtime.errors import DataRejected, JobRejected

NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
#: of a relative folder with a slash at its end; "" without partitions
FOLDER_PATTERN: Final = r"(?:[^./=_\x00-\x1f][^/=\x00-\x1f]*=[^/=\x00-\x1f]+/)*"
_SPECIAL: Final = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
_MAX_NAME_BYTES: Final = 255  #: of a folder on Linux
_MAX_CODE: Final = 1 << 31


def check_partition_columns(names: Sequence[str]) -> None:
    """Raises JobRejected, which names `partition_by`, if the names cannot be partition columns."""
    if isinstance(names, str):
        raise JobRejected("bad-partition", "partition_by", f"must be a tuple of columns: ({names!r},)")
    for name in names:
        if not isinstance(name, str) or not name or name[0] in "._":
            detail = f"{name!r} cannot be a partition column: readers ignore folders that begin with '.' or '_'"
            raise JobRejected("bad-partition", "partition_by", detail)
    if len(set(names)) < len(names):
        raise JobRejected("bad-partition", "partition_by", f"a column is named twice: {', '.join(names)}")


def check_split(columns: pa.Schema, names: Sequence[str]) -> None:
    """Raises DataRejected if rows of these columns cannot be split by the partition columns `names`."""
    for name in names:
        place = columns.get_field_index(name)
        if place < 0:
            raise DataRejected(f"partition_by: the rows have no column {name!r}, only {', '.join(columns.names)}")
        _folder_type(name, columns.field(place).type)
    if not set(columns.names) - set(names):
        raise DataRejected(f"partition_by: the rows have no columns besides {', '.join(names)}")


def split_by_partition(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each partition with the partition's relative folder, without the partition columns.

    Rows of equal values keep their order. Null and the empty text are two parts of the same folder.

    Raises:
        DataRejected: the batch lacks a partition column, has no other column, or a value has no folder name.
    """
    check_split(batch.schema, names)
    texts = [_texts(batch, name) for name in names]
    data = batch.select([name for name in batch.schema.names if name not in names])
    if not batch.num_rows:
        return
    codes = np.zeros(batch.num_rows, np.int64)
    for text in texts:
        codes = codes * len(text.dictionary) + text.indices.to_numpy()
        if codes.max() >= _MAX_CODE:  # dense again, so that the product with the next column cannot overflow
            codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
    _, first, inverse, counts = np.unique(codes, return_index=True, return_inverse=True, return_counts=True)
    groups = np.split(np.argsort(inverse, kind="stable"), np.cumsum(counts)[:-1])
    for row, group in zip(first.tolist(), groups, strict=True):
        folder = "/".join(
            _folder_name(name, text.dictionary[text.indices[row].as_py()].as_py())
            for name, text in zip(names, texts, strict=True)
        )
        # a copy of the rows: a slice would hold the memory of the whole batch until the partition's file is written
        yield folder, data if len(groups) == 1 else data.take(pa.array(group))


def partition_values(path: str) -> dict[str, str | None]:
    """The partition columns of a file from its relative path."""
    parts = [part.split("=", 1) for part in PurePosixPath(path).parts[:-1] if "=" in part]
    return {unquote(name): None if value == NULL_PARTITION else unquote(value) for name, value in parts}


def _folder_name(column: str, value: str | None) -> str:
    name = f"{_escape(column)}={_escape(value) if value else NULL_PARTITION}"
    if len(name.encode()) > _MAX_NAME_BYTES:
        detail = f"a value of {len(value or '')} characters is too long for a folder name: {name[:80]}…"
        raise DataRejected(f"partition_by: column {column!r}: {detail}")
    return name


def _escape(text: str) -> str:
    return _SPECIAL.sub(lambda match: f"%{ord(match[0]):02X}", text)


def _texts(batch: pa.RecordBatch, name: str) -> pa.DictionaryArray:
    """The values of a partition column as text, dictionary-encoded; null is a value of the dictionary."""
    column = batch.column(name)
    kind = _folder_type(name, column.type)
    encoded = pc.dictionary_encode(column.cast(kind), null_encoding="encode")
    return pa.DictionaryArray.from_arrays(encoded.indices, encoded.dictionary.cast(pa.string()))


def _folder_type(name: str, kind: pa.DataType) -> pa.DataType:
    """The type of the values of a partition column. Raises DataRejected: values of the type have no folder names."""
    values = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not has_folder_names(values):
        detail = f"column {name!r} is {values}: a partition column is text, an integer, a boolean or a date"
        raise DataRejected(f"partition_by: {detail}")
    return values


def has_folder_names(kind: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_large_string, pa.types.is_date)
    return any(test(kind) for test in tests)
