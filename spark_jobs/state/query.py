"""The state of a checkpoint as a table for people: a page of the rows of a state, or SQL saved by an author.

Rows are limited, and long cells are cut within Spark, so the result stays small in memory. A page reads ranges of key
groups. By the manifest's row count, the first range has about two pages; each further range is twice as wide.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import pyarrow as pa
from msgspec import Meta

from runtime.core.snapshot.contents import CONTENTS_VIEW, StoredState, stored_states
from runtime.errors import CorruptState, JobRejected
from spark_jobs.column_types import quote_name, to_spark_types
from spark_jobs.session import MAX_ERROR_LENGTH, first_line
from spark_jobs.state.rows import (
    IDENTITY_COLUMNS,
    OBJECT_KEY_COUNT,
    OBJECT_SCHEMA,
    CheckpointState,
    OpenedCheckpoint,
    find_state,
    open_checkpoint,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField

PAGE_ROWS: Final = 200
MAX_QUERY_ROWS: Final = 1_000
MAX_CELL_LENGTH: Final = 2_000  #: characters
MAX_TABLE_BYTES: Final = 2 * 1024 * 1024
STATE_SOURCE: Final = "weir-state"
KEY_GROUP: Final = IDENTITY_COLUMNS[2]
_PLAIN_TYPES: Final = ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double")
_NESTED_TYPES: Final = ("array", "map", "struct", "variant")
_RAISED_PATTERN: Final = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|CorruptState|JobRejected|Failure): ")


CursorNumber = Annotated[int, Meta(ge=0, le=10**9)]


class Cursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The start of a page: a key group, and the number of its rows on earlier pages."""

    group: CursorNumber = 0
    skip: CursorNumber = 0


class PageOfRows(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="rows"):
    """A page of the rows of a state, ordered by key group and key; with `key`, only the rows of that key."""

    operator: str
    state: str
    key: dict[str, Any] = {}
    cursor: Cursor = Cursor()


class SavedQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="sql"):
    """SQL that an author has saved with a pipeline; it reads views of all states."""

    name: str
    sql: str


class TableColumn(msgspec.Struct, frozen=True):
    """A column. `type` in Spark's spelling."""

    name: str
    type: str
    is_key: bool = False


class ResultTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table whose cells are JSON numbers, booleans, nulls or text.

    `is_cut`: more rows exist. `cursor`: the start of the next page. `has_cut_cells`: some text was longer than a cell.
    `keys`: the columns by which rows of the state can be looked up, with their Arrow types.
    """

    columns: list[TableColumn]
    rows: list[list[Any]]
    keys: list[TableColumn] = []
    is_cut: bool = False
    has_cut_cells: bool = False
    cursor: Cursor | None = None


def parse_request(params: Mapping[str, Any]) -> PageOfRows | SavedQuery:
    """Decodes a request. Raises JobRejected: it is malformed."""
    try:
        return msgspec.convert(params, PageOfRows | SavedQuery)
    except msgspec.ValidationError as error:
        raise JobRejected("bad-params", "params", str(error)) from error


def result_table(
    spark: Callable[[], SparkSession],
    path: str,
    request: PageOfRows | SavedQuery,
    on_open: Callable[[OpenedCheckpoint], None],
) -> ResultTable:
    """The result of `request` for the checkpoint in folder `path`. Spark starts after all checks that need no Spark.

    Args:
        on_open: called with the opened checkpoint, so that the caller can renew its pin while it is read.

    Raises:
        JobRejected: the checkpoint cannot be read, operator or state is unknown, a key does not fit, or Spark refuses
            the SQL; each is named.
    """
    name = request.name if isinstance(request, SavedQuery) else request.state
    try:
        opened = open_checkpoint(path)
        on_open(opened)
        if isinstance(request, SavedQuery):
            return _query_table(spark, path, opened, request)
        return _page(spark, path, opened, request)
    except CorruptState as error:
        raise JobRejected("corrupt-checkpoint", "checkpoint", str(error)) from error
    except Exception as error:
        if not _is_spark_error(error):
            raise
        code = "bad-sql" if isinstance(request, SavedQuery) else "state-unreadable"
        raise JobRejected(code, name, _error_line(error)) from error


# ---------------------------------------------------------------- a page of rows


def _page(spark: Callable[[], SparkSession], path: str, opened: OpenedCheckpoint, request: PageOfRows) -> ResultTable:
    stored = _find_stored_state(opened, request)
    if not stored.rows:
        return ResultTable(columns=[], rows=[])
    state = find_state(opened, request.operator, request.state)
    key = typed_key(state, stored, request.key)
    from pyspark.sql import functions as f

    frame = _state_frame(spark(), path, stored)
    if (condition := key_condition(frame, state, stored, key)) is not None:
        frame = frame.where(condition)
    hidden = IDENTITY_COLUMNS if state.is_broadcast else IDENTITY_COLUMNS[:2]
    fields = [field for field in frame.schema.fields if field.name not in hidden]
    keys = _key_columns(state)
    order = keys or [field.name for field in fields if "map<" not in field.dataType.simpleString()]
    columns, cells = _cells(fields, [field.name for field in fields])
    columns = [msgspec.structs.replace(column, is_key=column.name in keys) for column in columns]
    rows: list[tuple[Any, ...]] = []
    skip = request.cursor.skip  # rows of the first key group that earlier pages have shown
    for groups in _ranges(opened, stored, request.cursor.group, is_one=key is not None or state.is_broadcast):
        part = frame
        if not state.is_broadcast:
            part = frame.where((f.col(KEY_GROUP) >= groups.start) & (f.col(KEY_GROUP) < groups.stop))
        ordered = part.orderBy(KEY_GROUP, *map(quote_name, order)).offset(skip).limit(PAGE_ROWS + 1 - len(rows))
        rows += [tuple(row) for row in ordered.select(KEY_GROUP, *cells).collect()]
        skip = 0
        if len(rows) > PAGE_ROWS:
            break
    table = _page_table(columns, rows, request.cursor)
    findable = [TableColumn(name, str(kind), is_key=True) for name, kind in _key_types(state, stored).items()]
    return msgspec.structs.replace(table, keys=findable)


def _page_table(columns: list[TableColumn], grouped_rows: list[tuple[Any, ...]], cursor: Cursor) -> ResultTable:
    """A page of `grouped_rows`, each a key group followed by the cells."""
    rows = _limit_bytes([list(row[1:]) for row in grouped_rows[:PAGE_ROWS]])
    if len(rows) == len(grouped_rows):
        return _table(columns, rows, is_cut=False)
    groups = [row[0] or 0 for row in grouped_rows[: len(rows)]]
    before = cursor.skip if groups[-1] == cursor.group else 0
    return _table(columns, rows, is_cut=True, cursor=Cursor(groups[-1], before + groups.count(groups[-1])))


def _find_stored_state(opened: OpenedCheckpoint, request: PageOfRows) -> StoredState:
    """The manifest's entry for the state. Raises JobRejected: operator or state is unknown, or the state is a list."""
    states = stored_states(opened.manifest)
    fits = [each for each in states if (each.operator, each.name) == (request.operator, request.state)]
    state = next((each for each in fits if each.kind.has_rows), None)
    if state is not None:
        return state
    if fits:
        detail = f"{request.state!r} is a {fits[0].kind} state: its elements are in the view `{CONTENTS_VIEW}`"
        raise JobRejected("no-rows", "state", detail)
    find_state(opened, request.operator, request.state)
    raise AssertionError("a state that the manifest does not list is refused")


def _ranges(opened: OpenedCheckpoint, stored: StoredState, first: int, *, is_one: bool) -> Iterator[range]:
    """Ranges of key groups from `first` on. `is_one`: a single range, for broadcast state or a given key."""
    groups = opened.manifest.max_parallelism
    width = groups if is_one else math.ceil(2 * PAGE_ROWS * groups / stored.rows)
    while first < groups:
        yield range(first, min(groups, first + width))
        first, width = first + width, 2 * width


def _key_columns(state: CheckpointState) -> tuple[str, ...]:
    if state.holds_objects:
        return tuple(OBJECT_SCHEMA.names[:OBJECT_KEY_COUNT])
    return () if state.is_broadcast else tuple(state.key_schema.names)


def typed_key(state: CheckpointState, stored: StoredState, key: Mapping[str, Any]) -> pa.RecordBatch | None:
    """The requested key as a batch of a single row, in the types of the key columns.

    Raises:
        JobRejected: a column is not a key column, or its value has another type; both are named.
    """
    if not key:
        return None
    types = _key_types(state, stored)
    if unknown := [name for name in key if name not in types]:
        detail = f"{state.name!r} of {state.operator!r} has no key column {unknown[0]!r}, only {', '.join(types)}"
        raise JobRejected("unknown-column", f"key.{unknown[0]}", detail)
    if state.holds_objects and (missing := [name for name in types if name not in key]):
        raise JobRejected("incomplete-key", f"key.{missing[0]}", f"this state needs all of its key: {', '.join(types)}")
    typed = {name: _typed_value(name, key[name], kind) for name, kind in types.items() if name in key}
    return pa.RecordBatch.from_pydict(typed)


def _key_types(state: CheckpointState, stored: StoredState) -> dict[str, pa.DataType]:
    if not state.holds_objects:
        return {} if state.is_broadcast else {field.name: field.type for field in state.key_schema}
    key_types = stored.keys
    try:
        return {name: pa.type_for_alias(kind) for name, kind in key_types.items()} or {"key": pa.string()}
    except ValueError:  # decimal128(12, 2) and the like have no alias
        return {"key": pa.string()}


def _typed_value(name: str, value: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    try:
        if isinstance(value, bool) and not pa.types.is_boolean(kind):
            raise TypeError("a boolean")
        if isinstance(value, str):
            return _parse_value(pa.array([value], pa.string()), kind)
        return pa.array([value]).cast(kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        detail = f"the key column {name!r} is {kind}; {json.dumps(value, default=str)[:100]} is not"
        raise JobRejected("bad-key", f"key.{name}", detail) from None


def _parse_value(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parses a value. A timestamp without an offset is in UTC, as tables show timestamps."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        try:
            return text.cast(pa.timestamp(kind.unit)).cast(kind)
        except pa.ArrowInvalid:
            return text.cast(kind)
    return text.cast(kind)


def key_condition(
    frame: DataFrame, state: CheckpointState, stored: StoredState, key: pa.RecordBatch | None
) -> Column | None:
    """The filter for `key`; None without a key. State of Python functions is filtered by its key as JSON."""
    if key is None:
        return None
    from pyspark.sql import functions as f

    row = key.to_pylist()[0]
    if state.holds_objects:
        values = list(row.values())
        texts = {msgspec.json.encode(values[0] if len(values) == 1 else values).decode()}
        if not stored.keys:
            texts.add(str(row["key"]))
        return f.col("key").isin(*texts)
    condition = f.lit(True)
    carried = to_spark_types(key)
    for name in key.schema.names:
        value = carried.column(name)[0].as_py()
        text = value.isoformat() if hasattr(value, "isoformat") else value
        condition &= f.col(quote_name(name)).eqNullSafe(f.lit(text).cast(frame.schema[name].dataType))
    return condition


# ---------------------------------------------------------------- saved SQL


def _query_table(
    spark: Callable[[], SparkSession], path: str, opened: OpenedCheckpoint, request: SavedQuery
) -> ResultTable:
    views = _views(opened, request.name)
    session = spark()
    for view, state in views.items():
        if _mentions_view(view, request.sql) and _has_columns(opened, state):
            _state_frame(session, path, state).createOrReplaceTempView(view)
    if _mentions_view(CONTENTS_VIEW, request.sql):
        session.read.format(STATE_SOURCE).load(path).createOrReplaceTempView(CONTENTS_VIEW)
    try:
        frame = session.sql(request.sql)
    except Exception as error:
        if "TABLE_OR_VIEW_NOT_FOUND" not in str(error):
            raise
        raise _missing_view_error(request, views, _error_line(error)) from error
    names = [f"c{place}" for place in range(len(frame.columns))]  # the author's names may be duplicate
    columns, cells = _cells(frame.schema.fields, names)
    rows = [list(row) for row in frame.toDF(*names).limit(MAX_QUERY_ROWS + 1).select(*cells).collect()]
    bounded = _limit_bytes(rows[:MAX_QUERY_ROWS])
    return _table(columns, bounded, is_cut=len(bounded) < len(rows))


def _views(opened: OpenedCheckpoint, query: str) -> dict[str, StoredState]:
    """The states by view name.

    Raises:
        JobRejected: two states have the same view name; both are named.
    """
    views: dict[str, StoredState] = {}
    for state in stored_states(opened.manifest):
        other = views.setdefault(state.view, state) if state.view else state
        if other is not state:
            candidates = " and ".join(f"{each.name!r} of {each.operator!r}" for each in (other, state))
            raise JobRejected("ambiguous-view", query, f"the view {state.view} could be {candidates}")
    return views


def _has_columns(opened: OpenedCheckpoint, state: StoredState) -> bool:
    """Whether the columns of the state are known; without rows, only the manifest can name them."""
    if state.rows:
        return True
    try:
        find_state(opened, state.operator, state.name)
    except JobRejected as error:
        if error.code != "empty-state":
            raise
        return False
    return True


def _missing_view_error(request: SavedQuery, views: Mapping[str, StoredState], sentence: str) -> JobRejected:
    empty = [view for view, state in views.items() if not state.rows and _mentions_view(view, request.sql)]
    if empty:
        detail = f"{empty[0]} has no rows in this checkpoint, and its columns are unknown"
        return JobRejected("empty-state", request.name, detail)
    view_names = ", ".join([CONTENTS_VIEW, *views])
    return JobRejected("bad-sql", request.name, f"{sentence} The views of this checkpoint are {view_names}")


def _mentions_view(view: str, sql: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(view)}(?!\w)", sql, re.IGNORECASE) is not None


# ---------------------------------------------------------------- from Spark to a table


def _state_frame(spark: SparkSession, path: str, state: StoredState) -> DataFrame:
    return spark.read.format(STATE_SOURCE).options(operator=state.operator, state=state.name).load(path)


def _cells(fields: Sequence[StructField], names: Sequence[str]) -> tuple[list[TableColumn], list[Column]]:
    """The table's columns, and a Spark expression for each: numbers and booleans unchanged, other types as text."""
    columns = [TableColumn(field.name, field.dataType.simpleString()) for field in fields]
    return columns, [_cell_expression(name, field.dataType) for field, name in zip(fields, names, strict=True)]


def _cell_expression(name: str, kind: DataType) -> Column:
    """The expression of a cell. Longer text is cut to `MAX_CELL_LENGTH` + 1 characters, which shows that it was cut."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import BinaryType

    column = f.col(quote_name(name))
    text = kind.simpleString()
    if text in _PLAIN_TYPES:
        return column
    if isinstance(kind, BinaryType):
        column = f.base64(f.substring(column, 1, MAX_CELL_LENGTH))
    elif text.startswith(_NESTED_TYPES):
        column = f.to_json(column)
    return f.substring(column.cast("string"), 1, MAX_CELL_LENGTH + 1)


def _table(columns: list[TableColumn], rows: list[list[Any]], **facts: Any) -> ResultTable:
    long = any(isinstance(cell, str) and len(cell) > MAX_CELL_LENGTH for row in rows for cell in row)
    storable_rows = [[_storable_cell(cell) for cell in row] for row in rows]
    return ResultTable(columns=columns, rows=storable_rows, has_cut_cells=long, **facts)


def _storable_cell(cell: Any) -> Any:
    """The cell in a form that JSON and Postgres can hold."""
    if isinstance(cell, float) and not math.isfinite(cell):
        return str(cell)
    if not isinstance(cell, str):
        return cell
    text = cell.replace("\0", "\N{SYMBOL FOR NULL}")
    return f"{text[:MAX_CELL_LENGTH]}…" if len(text) > MAX_CELL_LENGTH else text


def _limit_bytes(rows: list[list[Any]]) -> list[list[Any]]:
    """The rows that fit into `MAX_TABLE_BYTES`, at least the first."""
    total = 0
    for count, row in enumerate(rows):
        total += len(json.dumps(row, default=str))
        if count and total > MAX_TABLE_BYTES:
            return rows[:count]
    return rows


def _is_spark_error(error: Exception) -> bool:
    return type(error).__module__.split(".")[0] in ("pyspark", "py4j")


def _error_line(error: Exception) -> str:
    """The first line of Spark's message, or the line that names the exception of a Python worker."""
    lines = str(error).splitlines() if "Traceback" in str(error) else []
    raised = [line for line in lines if _RAISED_PATTERN.match(line)]
    return raised[-1].removeprefix("runtime.errors.")[:MAX_ERROR_LENGTH] if raised else first_line(error)
