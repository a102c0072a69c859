"""Avro messages, with their schemas in a schema registry.

Each message names the schema with which it was written. It is read into the schema of the author by Avro's rules of
schema resolution, so columns do not change when producers change.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from runtime.connectors.avro_types import arrow_type
from runtime.connectors.kafka.formats import Decode, Encode, decode_with, rows_of
from runtime.connectors.kafka.registry import FRAME_BYTES, SchemaRegistry, frame, schema_number
from runtime.errors import DataRejected, JobRejected
from runtime.libraries import import_library


@dataclass(frozen=True)
class KafkaAvro:
    """An Avro record per message, framed by a schema registry.

    Args:
        registry: the registry with the schemas of the writers.
        schema: Avro schema of a record, as JSON text. Messages are read into it; a sink writes with it and registers
            it under the subject `<topic>-value`.
    """

    registry: SchemaRegistry
    schema: str

    def check(self) -> None:
        self.registry.check()
        self.columns()

    def columns(self) -> pa.Schema:
        """The columns. Raises JobRejected if the schema is no Avro record, or has a type without a column type."""
        try:
            parsed = json.loads(self.schema)
        except ValueError as error:
            raise JobRejected("bad-schema", "format.schema", f"is not JSON: {error}") from error
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            raise JobRejected("bad-schema", "format.schema", "must be an Avro schema of a record")
        self._parse(parsed)
        struct: pa.StructType = arrow_type(parsed, {}, "record")[0]
        return pa.schema(list(struct))

    def decoder(self) -> Decode:
        avro = import_library("fastavro", "avro")
        client, columns, reader = self.registry.open(), self.columns(), self._parse(json.loads(self.schema))
        writers: dict[int, Any] = {}

        def read(value: bytes) -> Any:
            number = schema_number(value)
            if number not in writers:
                writers[number] = avro.parse_schema(json.loads(client.schema(number)))
            data = io.BytesIO(value)
            data.seek(FRAME_BYTES)
            try:
                return avro.schemaless_reader(data, writers[number], reader)
            except avro.read.SchemaResolutionError as error:
                reason = f"schema {number} of the message cannot be read as the schema of the source: {error}"
                raise pa.ArrowInvalid(reason) from error
            except (EOFError, IndexError, UnicodeDecodeError, ValueError, OverflowError) as error:
                raise pa.ArrowInvalid(f"the value is not written with its schema {number}: {error!r}") from error

        def parse(values: Sequence[bytes]) -> pa.RecordBatch:
            return pa.RecordBatch.from_pylist([read(value) for value in values], columns)

        return lambda values: decode_with(values, columns, parse)

    def encoder(self, topic: str) -> Encode:
        avro = import_library("fastavro", "avro")
        head = frame(self.registry.open().register(f"{topic}-value", self.schema, "AVRO"))
        schema = self._parse(json.loads(self.schema))

        def write(row: Mapping[str, Any]) -> bytes:
            data = io.BytesIO(head)
            data.seek(FRAME_BYTES)
            try:
                avro.schemaless_writer(data, schema, row)
            except (ValueError, TypeError, AttributeError, OverflowError, KeyError) as error:
                raise DataRejected(f"topic {topic!r}: a row does not fit the Avro schema: {error}") from error
            return data.getvalue()

        return lambda batch: [write(row) for row in rows_of(batch, topic)]

    def _parse(self, schema: Any) -> Any:
        avro = import_library("fastavro", "avro")
        try:
            return avro.parse_schema(schema)
        except (avro.schema.SchemaParseException, avro.schema.UnknownType, KeyError, TypeError) as error:
            raise JobRejected("bad-schema", "format.schema", f"is no Avro schema: {error!r}") from error
