"""Broadcast join of a stream with a bounded stream, which every subtask holds as a whole.

Input 1 is the build side: its rows are broadcast state and are indexed when the first probe row arrives. Input 0 is the
probe side; its rows arrive after the end of the build side (`core.subtask.build_sides`). As in SQL, a null key matches
no row.

Input 2, if the build side is refreshed, has later versions of it (`dataflow.versioned_table`). Their rows are state
beside the version in use. The last row of a version tells how many rows it has: the version then replaces the one in
use, before the next probe row. All subtasks receive the rows of input 2 in the same order, so each checkpoint holds the
same version in all of them.
"""

import itertools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from runtime.errors import DataRejected, EnvironmentFailure, JobRejected
from runtime.operators.column_difference import column_difference, columns_of
from runtime.ports import Collector, Operator, OperatorContext
from runtime.state.broadcast import BroadcastTable
from runtime.state.encoded_texts import ByDictionary, encoded_columns, encoded_field, has_few_values
from runtime.state.index.factorise import factorise
from runtime.state.index.key_codec import check_key_type, common_key_type, key_codec, plain_type, to_plain
from runtime.state.index.key_index import NOT_FOUND, KeyIndex, RowIds

PROBE_INPUT: Final = 0
BUILD_INPUT: Final = 1
REFRESH_INPUT: Final = 2
VERSION_COLUMN: Final = "_weir_version"  #: of rows of input 2: the number of their version, which rises
ROWS_COLUMN: Final = "_weir_rows"  #: null, but for the last row of a version: the number of its other rows
_VERSION: Final = "version"  #: key in the broadcast state: the version in use, from 1 on
_PENDING: Final = "pending"  #: key in the broadcast state: the version of the pending rows
REFRESHES: Final = "refreshes"  #: counter: versions that a subtask has begun to use
_MAX_ENCODED_TEXTS: Final = 1 << 12  #: distinct texts up to which an added column is dictionary-encoded


class BroadcastJoin(Operator):
    """Adds columns of the build side to the probe side.

    A dictionary-encoded key is looked up once per dictionary value. If the probe side has encoded columns, texts of few
    values are added as encoded columns too.

    Args:
        on: key columns, with the same names on both sides; unique in the build side.
        take: columns of the build side to add.
        how: "inner" drops probe rows without a match, "left" keeps them with nulls.
        is_refreshed: input 2 has later versions of the build side.
    """

    def __init__(self, on: Sequence[str], take: Sequence[str], how: str = "inner", is_refreshed: bool = False) -> None:
        if how not in ("inner", "left"):
            raise JobRejected("bad-join", "how", f"must be 'inner' or 'left', not {how!r}")
        if not on:
            raise JobRejected("bad-join", "on", "a join needs at least one key column")
        self._on = tuple(on)
        self._take = tuple(take)
        self._inner = how == "inner"
        self._is_refreshed = is_refreshed
        self._lookup: _Lookup | None = None

    def open(self, context: OperatorContext) -> None:
        self._context = context
        self._build: BroadcastTable = context.state.broadcast_table("build")
        if self._is_refreshed:
            self._pending: BroadcastTable = context.state.broadcast_table("refresh.rows")
            self._versions = context.state.broadcast_map("refresh.versions")
            self._versions.setdefault(_VERSION, 1)
            self._versions.setdefault(_PENDING, 1)
        else:
            context.state.discard("refresh.")

    def check_columns(self, probe: pa.Schema | None, build: pa.Schema | None) -> None:
        """Checks the columns of each side; None: unknown.

        Raises:
            JobRejected: a side lacks a column of `on`, or its type cannot be a key; the build side lacks a column of
                `take`, or the probe side has it; or the types of a column of `on` have no common type.
        """
        if build is not None:
            self._check_build(build)
        if probe is not None:
            self._check_probe(probe)
        if build is not None and probe is not None:
            for name in self._on:
                _check_common_type(name, probe.field(name).type, build.field(name).type)

    def joined_columns(self, probe: pa.Schema, build: pa.Schema) -> pa.Schema:
        """The output columns for the columns of the probe side and of the build side. Raises as `check_columns`."""
        self.check_columns(probe, build)
        return pa.schema([*probe, *(pa.field(name, plain_type(build.field(name).type)) for name in self._take)])

    def process(self, input: int, batch: pa.RecordBatch, out: Collector) -> None:
        if input == BUILD_INPUT:
            self._append(self._build, batch)
            self._lookup = None
        elif input == REFRESH_INPUT:
            self._refresh(batch)
        elif batch.num_rows:
            self._probe(batch, out)

    def _append(self, table: BroadcastTable, batch: pa.RecordBatch) -> None:
        names = self._check_build(batch.schema)
        columns = [to_plain(batch.column(name)) for name in names]
        table.append(pa.RecordBatch.from_arrays(columns, names=names))

    def _refresh(self, batch: pa.RecordBatch) -> None:
        """Adds rows of later versions. A batch may have the end of a version and the beginning of the next."""
        if not batch.num_rows:
            return
        versions = batch.column(VERSION_COLUMN).to_numpy()
        is_last = np.asarray(batch.column(ROWS_COLUMN).is_valid())
        cuts = np.flatnonzero((np.diff(versions) != 0) | (is_last[1:] != is_last[:-1])) + 1
        for start, stop in itertools.pairwise([0, *cuts.tolist(), batch.num_rows]):
            rows = batch.slice(start, stop - start)
            if is_last[start]:
                self._switch(int(versions[start]), rows.column(ROWS_COLUMN)[0].as_py())
            else:
                self._add_pending(int(versions[start]), rows)

    def _add_pending(self, version: int, rows: pa.RecordBatch) -> None:
        if version != self._versions[_PENDING]:
            self._pending.clear()  # a restore has begun a version anew, or the table could not be read to its end
            self._versions[_PENDING] = version
        self._append(self._pending, rows)

    def _switch(self, version: int, rows: int) -> None:
        """Replaces the version in use by the pending one.

        Raises:
            EnvironmentFailure: rows of the version are missing, or the version is not later than the one in use.
            DataRejected: the columns differ from those of the version in use, or a key occurs twice.
        """
        in_use = self._versions[_VERSION]
        if (self._versions[_PENDING], len(self._pending)) != (version, rows) or version <= in_use:
            held = f"{len(self._pending)} rows of version {self._versions[_PENDING]}, with version {in_use} in use"
            raise EnvironmentFailure(f"version {version} of a build side has {rows} rows, but the join has {held}")
        before, now = self._build.table(), self._pending.table()
        if before is not None and now is not None and not now.schema.equals(before.schema):
            difference = column_difference(columns_of(before.schema), columns_of(now.schema))
            raise DataRejected(f"version {version} of the build side has other columns: {difference}")
        self._build.take_over(self._pending)
        self._versions[_VERSION] = version
        self._lookup = _Lookup(self._on, self._build.table())
        self._context.count(REFRESHES)

    def _check_build(self, schema: pa.Schema) -> list[str]:
        """The names of the build columns to store. Raises JobRejected if a column is missing or cannot be a key."""
        names = list(dict.fromkeys([*self._on, *self._take]))
        for name in names:
            if name not in schema.names:
                raise JobRejected("unknown-column", name, f"the build side has only {', '.join(schema.names)}")
        for name in self._on:
            check_key_type(name, schema.field(name).type)
        return names

    def _check_probe(self, schema: pa.Schema) -> None:
        for name in self._on:
            if name not in schema.names:
                raise JobRejected("unknown-column", name, f"the probe side has only {', '.join(schema.names)}")
            check_key_type(name, schema.field(name).type)
        for name in self._take:
            if name in schema.names:
                raise JobRejected("duplicate-column", name, "both sides of the join have this column")

    def _probe(self, batch: pa.RecordBatch, out: Collector) -> None:
        self._check_probe(batch.schema)
        if self._lookup is None:
            self._lookup = _Lookup(self._on, self._build.table())
        rows = self._lookup.rows([batch.column(name) for name in self._on])
        matches = rows != NOT_FOUND
        if self._inner and not matches.all():
            batch, rows, matches = batch.filter(pa.array(matches)), rows[matches], matches[matches]
        if batch.num_rows:
            out.emit(self._join(batch, pa.array(rows, mask=None if matches.all() else ~matches)))

    def _join(self, batch: pa.RecordBatch, rows: pa.Array) -> pa.RecordBatch:
        assert self._lookup is not None, "the lookup is made before the first row"
        encodes = bool(encoded_columns(batch.schema))
        added = [self._lookup.column(name, rows, encodes) for name in self._take]
        fields = [*batch.schema, *(field for field, _ in added)]
        return pa.RecordBatch.from_arrays([*batch.columns, *(array for _, array in added)], schema=pa.schema(fields))


class _Lookup:
    """Build rows by key. Without build rows no look-up succeeds, and the added columns have type null."""

    def __init__(self, on: Sequence[str], table: pa.Table | None) -> None:
        self._on = on
        self._table = None if table is None else table.combine_chunks()
        self._index = KeyIndex(len(on))
        self._rows_of_dictionary = ByDictionary(lambda values: self._rows_of_distinct([to_plain(values)]))
        self._encoded: dict[str, pa.DictionaryArray | None] = {}  #: build columns; None: too many distinct texts
        if self._table is not None:
            self._keys = [pa.concat_arrays(self._table.column(name).chunks) for name in on]
            self._codecs = [key_codec(plain_type(key.type)) for key in self._keys]
            self._build_index()

    def rows(self, keys: Sequence[pa.Array]) -> RowIds:
        """The build row of each probe row, or `NOT_FOUND`."""
        if self._table is None:
            return np.full(len(keys[0]), NOT_FOUND, dtype=np.intp)
        self._check_types(keys)
        if len(keys) == 1 and has_few_values(keys[0]):
            return self._rows_of_dictionary.of_rows(keys[0])
        return self._rows_of_keys(keys)

    def _rows_of_keys(self, keys: Sequence[pa.Array]) -> RowIds:
        distinct = factorise(keys)
        once = [to_plain(key) for key in distinct.take_keys(keys)]
        return np.asarray(self._rows_of_distinct(once)[distinct.key_numbers])

    def _rows_of_distinct(self, once: Sequence[pa.Array]) -> RowIds:
        row_ids = self._index.find(self._encode(once, learn=False))
        rows = np.where(row_ids == NOT_FOUND, NOT_FOUND, self._row_of[row_ids])
        rows[_any_null(once)] = NOT_FOUND
        return rows

    def column(self, name: str, rows: pa.Array, encodes: bool) -> tuple[pa.Field, pa.Array]:
        """A build column at the given rows, with its field. `encodes`: texts of few values are encoded."""
        if self._table is None:
            return pa.field(name, pa.null()), pa.nulls(len(rows))
        field = pa.field(name, self._table.field(name).type)
        if encodes and (texts := self._encoded_column(name)) is not None:
            column = texts.take(rows)
            return encoded_field(field, column.type), column
        column = self._table.column(name).take(rows)
        return field, pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)

    def _encoded_column(self, name: str) -> pa.DictionaryArray | None:
        if name not in self._encoded:
            self._encoded[name] = self._encode_column(name)
        return self._encoded[name]

    def _encode_column(self, name: str) -> pa.DictionaryArray | None:
        assert self._table is not None, "there are build rows"
        column = self._table.column(name)
        if not pa.types.is_string(column.type):
            return None
        texts = pa.concat_arrays(column.chunks).dictionary_encode()
        return texts if len(texts.dictionary) <= _MAX_ENCODED_TEXTS else None

    def _build_index(self) -> None:
        usable = np.flatnonzero(~_any_null(self._keys))
        keys = [key.take(pa.array(usable)) for key in self._keys]
        distinct = factorise(keys)
        if len(distinct) < len(usable):
            raise DataRejected(
                f"the build side of a join has the key {self._duplicate_key(keys, distinct.key_numbers)} twice"
            )
        self._row_of = np.zeros(1, dtype=np.intp)
        if len(usable):
            row_ids = self._index.add(self._encode(keys, learn=True))
            self._row_of = np.zeros(self._index.capacity, dtype=np.intp)
            self._row_of[row_ids] = usable

    def _duplicate_key(self, keys: Sequence[pa.Array], which: RowIds) -> dict[str, Any]:
        row = int(np.flatnonzero(np.bincount(which)[which] > 1)[0])
        return {name: key[row].as_py() for name, key in zip(self._on, keys, strict=True)}

    def _encode(self, keys: Sequence[pa.Array], learn: bool) -> npt.NDArray[np.int64]:
        return np.stack([codec.encode(key, learn) for codec, key in zip(self._codecs, keys, strict=True)])

    def _check_types(self, keys: Sequence[pa.Array]) -> None:
        for name, probe, build in zip(self._on, keys, self._keys, strict=True):
            _check_common_type(name, probe.type, build.type)


def _check_common_type(name: str, probe: Any, build: Any) -> None:
    """Raises JobRejected: the types of a key column on both sides have no common type."""
    if common_key_type(probe, build) is None:
        raise JobRejected("bad-join", name, f"the probe side has {probe}, the build side {build}")


def _any_null(columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
    masks = [np.asarray(pc.is_null(column)) for column in columns]
    return np.asarray(np.logical_or.reduce(masks))
