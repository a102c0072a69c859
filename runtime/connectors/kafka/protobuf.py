"""Protobuf messages, with their schemas in a schema registry.

Behind the frame each value names its message within the file of the writer, as a list of numbers; then follow the
fields. Fields have numbers, so messages of older and newer writers are read into the class of the author.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from runtime.connectors.kafka.formats import Decode, Encode, decode_with, rows_of
from runtime.connectors.kafka.registry import FRAME_BYTES, SchemaRegistry, schema_number
from runtime.errors import DataRejected, JobRejected
from runtime.libraries import import_library

#: by `FieldDescriptor.type`
_TYPES: Final[Mapping[int, pa.DataType]] = {
    1: pa.float64(),
    2: pa.float32(),
    3: pa.int64(),
    4: pa.uint64(),
    5: pa.int32(),
    6: pa.uint64(),
    7: pa.uint32(),
    8: pa.bool_(),
    9: pa.string(),
    12: pa.binary(),
    13: pa.uint32(),
    14: pa.string(),  # an enum, by name
    15: pa.int32(),
    16: pa.int64(),
    17: pa.int32(),
    18: pa.int64(),
}
_ENUM: Final = 14
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_MAX_DEPTH: Final = 32


@dataclass(frozen=True)
class KafkaProtobuf:
    """A Protobuf message per message of Kafka, framed by a schema registry.

    Args:
        registry: the registry. A sink registers the message's file under the subject `<topic>-value`.
        message: the class that protoc has generated. Its fields are the columns; unset fields with presence are null.
    """

    registry: SchemaRegistry
    message: Any

    def check(self) -> None:
        self.registry.check()
        if not hasattr(self.message, "DESCRIPTOR"):
            detail = f"must be a message class that protoc has generated, not {self.message!r}"
            raise JobRejected("bad-schema", "format.message", detail)
        self.columns()

    def columns(self) -> pa.Schema:
        return pa.schema([_arrow_field(each, 0) for each in self.message.DESCRIPTOR.fields])

    def decoder(self) -> Decode:
        library = import_library("google.protobuf.message", "kafka")
        columns, parse = self.columns(), self.message.FromString
        values_of = [(each.name, _plain_value(each)) for each in self.message.DESCRIPTOR.fields]

        def read(value: bytes) -> Any:
            schema_number(value)
            try:
                return parse(value[_end_of_indexes(value) :])
            except library.DecodeError as error:
                raise pa.ArrowInvalid(f"the value is no {self.message.DESCRIPTOR.full_name}: {error}") from error

        def parse_all(values: Sequence[bytes]) -> pa.RecordBatch:
            messages = [read(value) for value in values]
            arrays = [
                pa.array([plain(each) for each in messages], columns.field(name).type) for name, plain in values_of
            ]
            return pa.RecordBatch.from_arrays(arrays, schema=columns)

        return lambda values: decode_with(values, columns, parse_all)

    def encoder(self, topic: str) -> Encode:
        serialization = import_library("confluent_kafka.serialization", "kafka")
        protobuf = import_library("confluent_kafka.schema_registry.protobuf", "kafka")
        client = self.registry.open()
        serialize = protobuf.ProtobufSerializer(self.message, client.client, {"use.deprecated.format": False})
        context = serialization.SerializationContext(topic, serialization.MessageField.VALUE)
        client.call(f"subject '{topic}-value'", lambda: serialize(self.message(), context))  # registers the schema

        def write(row: Mapping[str, Any]) -> bytes:
            try:
                message = self.message(**{name: value for name, value in row.items() if value is not None})
            except (ValueError, TypeError) as error:
                raise DataRejected(f"topic {topic!r}: a row does not fit the message: {error}") from error
            data: bytes = serialize(message, context)
            return data

        return lambda batch: [write(row) for row in rows_of(batch, topic)]


def _end_of_indexes(value: bytes) -> int:
    """The place behind the list of message numbers. Raises ArrowInvalid if the value ends before."""
    read = import_library("kafka.record.util", "kafka").decode_varint
    try:
        count, place = read(value, FRAME_BYTES)
        for _ in range(count):
            _, place = read(value, place)
    except (IndexError, ValueError) as error:
        raise pa.ArrowInvalid("the value ends within its list of message numbers") from error
    return int(place)


def _is_map(descriptor: Any) -> bool:
    return descriptor.message_type is not None and descriptor.message_type.GetOptions().map_entry


def _arrow_field(descriptor: Any, depth: int) -> pa.Field:
    return pa.field(descriptor.name, _arrow_type(descriptor, depth), nullable=descriptor.has_presence)


def _arrow_type(descriptor: Any, depth: int) -> pa.DataType:
    if depth > _MAX_DEPTH:
        detail = f"{descriptor.full_name}: a message that contains itself has no column type"
        raise JobRejected("bad-schema", "format.message", detail)
    if _is_map(descriptor):
        key, value = descriptor.message_type.fields
        return pa.map_(_arrow_type(key, depth + 1), _single_type(value, depth))
    single = _single_type(descriptor, depth)
    return pa.list_(single) if descriptor.is_repeated else single


def _single_type(descriptor: Any, depth: int) -> pa.DataType:
    inner = descriptor.message_type
    if inner is None:
        return _TYPES[descriptor.type]
    if inner.full_name == _TIMESTAMP:
        return pa.timestamp("us", "UTC")
    if depth >= _MAX_DEPTH:
        detail = f"{descriptor.full_name}: a message that contains itself has no column type"
        raise JobRejected("bad-schema", "format.message", detail)
    return pa.struct([_arrow_field(each, depth + 1) for each in inner.fields])


def _plain_value(descriptor: Any) -> Callable[[Any], Any]:
    """Message -> value of the field as Arrow takes it."""
    name = descriptor.name
    if _is_map(descriptor):
        single = _plain_single(descriptor.message_type.fields[1])
        return lambda message: [(key, single(value)) for key, value in getattr(message, name).items()]
    single = _plain_single(descriptor)
    if descriptor.is_repeated:
        return lambda message: [single(each) for each in getattr(message, name)]
    if descriptor.has_presence:
        return lambda message: single(getattr(message, name)) if message.HasField(name) else None
    return lambda message: single(getattr(message, name))


def _plain_single(descriptor: Any) -> Callable[[Any], Any]:
    inner = descriptor.message_type
    if inner is None:
        if descriptor.type == _ENUM:
            names = {number: each.name for number, each in descriptor.enum_type.values_by_number.items()}
            return lambda value: names.get(value, str(value))
        return lambda value: value
    if inner.full_name == _TIMESTAMP:
        return lambda value: value.ToMicroseconds()
    fields = [(each.name, _plain_value(each)) for each in inner.fields]
    return lambda value: {field: plain(value) for field, plain in fields}
