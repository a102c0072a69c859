"""The columns of joined rows: those of the first stream, then those of the second, then columns that the join adds."""

from dataclasses import dataclass

import pyarrow as pa

from runtime.errors import JobRejected
from runtime.state.encodings import type_without_views
from runtime.state.index.key_codec import plain_type, to_plain


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The columns in which rows are kept and joined: without dictionaries, views and metadata; all may be null."""
    return pa.schema([pa.field(field.name, plain_type(type_without_views(field.type))) for field in schema])


def plain_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows with the columns `schema`, which hold all values of their present types."""
    columns = [to_plain(column) for column in batch.columns]
    cast = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(cast, schema=schema)


@dataclass(frozen=True)
class JoinColumns:
    """Names the columns of joined rows.

    A key column of the second stream that has the name of its counterpart is left out, as with SQL's `USING`.

    Args:
        keys: pairs of key columns of the first and second stream.
        suffixes: appended to the names that both streams have, for the first and second stream.
        added: names of the columns that the join adds; they hold times.
    """

    keys: tuple[tuple[str, str], ...]
    suffixes: tuple[str, str] = ("", "")
    added: tuple[str, ...] = ()

    def second_columns(self, second: pa.Schema) -> list[str]:
        """The columns of the second stream that joined rows have."""
        shared = {column for other, column in self.keys if other == column}
        return [name for name in second.names if name not in shared]

    def names(self, first: pa.Schema, second: pa.Schema) -> list[str]:
        """The names of the columns of joined rows.

        Raises:
            JobRejected: two columns have the same name.
        """
        second_names = self.second_columns(second)
        duplicates = set(first.names) & set(second_names)
        sides = ((first.names, self.suffixes[0]), (second_names, self.suffixes[1]))
        names = [name + suffix if name in duplicates else name for side, suffix in sides for name in side]
        names += self.added
        for name in names:
            if names.count(name) > 1:
                advice = "name them apart with suffixes, or rename or leave out a column with select"
                raise JobRejected("duplicate-column", name, f"two columns of the joined rows have this name: {advice}")
        return names

    def schema(self, first: pa.Schema, second: pa.Schema) -> pa.Schema:
        """The columns of joined rows. Raises as `names`."""
        first_schema, second_schema = plain_schema(first), plain_schema(second)
        second_types = [second_schema.field(name).type for name in self.second_columns(second_schema)]
        types = [*first_schema.types, *second_types, *[pa.timestamp("ms")] * len(self.added)]
        return pa.schema(list(zip(self.names(first, second), types, strict=True)))
