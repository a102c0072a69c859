"""Avro and Protobuf with a schema registry: values of every type, changed schemas, and errors by name."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    timestamp_pb2,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.connectors.kafka.avro import KafkaAvro
from runtime.connectors.kafka.protobuf import KafkaProtobuf
from runtime.connectors.kafka.registry import SchemaRegistry
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected, is_outage
from tests.example_counts import examples
from tests.schema_registry import Registry, running_registry


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running_registry() as registry:
        yield registry


def record(*fields: dict[str, Any], name: str = "Row") -> str:
    return json.dumps({"type": "record", "name": name, "fields": list(fields)})


ID = {"name": "id", "type": "long"}
OLD = record(ID, {"name": "text", "type": "string"})
NEW = record(ID, {"name": "text", "type": "string"}, {"name": "more", "type": ["null", "int"], "default": None})
OTHER = record({"name": "id", "type": "string"}, {"name": "text", "type": "string"})


def avro(registry: Registry, schema: str, **options: str) -> KafkaAvro:
    format_ = KafkaAvro(SchemaRegistry(registry.url, options), schema)
    format_.check()
    return format_


EVERYTHING = record(
    {"name": "flag", "type": "boolean"},
    {"name": "small", "type": "int"},
    {"name": "big", "type": ["null", "long"]},
    {"name": "half", "type": "float"},
    {"name": "full", "type": "double"},
    {"name": "raw", "type": "bytes"},
    {"name": "text", "type": ["string", "null"]},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "counts", "type": {"type": "map", "values": "long"}},
    {"name": "inner", "type": ["null", {"type": "record", "name": "Inner", "fields": [ID]}]},
    {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 2}},
    {"name": "second", "type": "Color"},
)
ROW = st.fixed_dictionaries(
    {
        "flag": st.booleans(),
        "small": st.integers(-(2**31), 2**31 - 1),
        "big": st.none() | st.integers(-(2**63), 2**63 - 1),
        "half": st.floats(width=32, allow_nan=False),
        "full": st.floats(allow_nan=False),
        "raw": st.binary(max_size=9),
        "text": st.none() | st.text(max_size=9),
        "day": st.dates(date(1900, 1, 1), date(2200, 1, 1)),
        "at": st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
        "price": st.decimals(-9_999_999, 9_999_999, places=2),
        "color": st.sampled_from(["RED", "BLUE"]),
        "tags": st.lists(st.text(max_size=3), max_size=3),
        "counts": st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2).map(lambda d: list(d.items())),
        "inner": st.none() | st.fixed_dictionaries({"id": st.integers(0, 9)}),
        "code": st.binary(min_size=2, max_size=2),
        "second": st.sampled_from(["RED", "BLUE"]),
    }
)


def coders(make: Callable[[SchemaRegistry], Any]) -> Iterator[tuple[pa.Schema, Any, Any]]:
    """Columns, encoder and decoder: made once, since a client takes longer than many examples."""
    with running_registry() as registry:
        format_ = make(SchemaRegistry(registry.url))
        format_.check()
        yield format_.columns(), format_.encoder("t"), format_.decoder()


@pytest.fixture(scope="module")
def everything() -> Iterator[tuple[pa.Schema, Any, Any]]:
    yield from coders(lambda registry: KafkaAvro(registry, EVERYTHING))


@settings(max_examples=examples(40))
@given(rows=st.lists(ROW, min_size=1, max_size=4))
def test_avro_values_of_every_type_come_back(everything: Any, rows: list[dict[str, Any]]) -> None:
    columns, encode, decode = everything
    batch = pa.RecordBatch.from_pylist(rows, columns)
    decoded = decode(encode(batch))
    assert decoded.malformed == ()
    assert decoded.batch.equals(batch)
    assert columns.field("price").type == pa.decimal128(9, 2)


def test_avro_is_read_into_the_schema_of_the_source(registry: Registry) -> None:
    """A producer with a newer or older schema changes no column; each schema is fetched once."""
    rows = {"id": [1, 2], "text": ["a", "b"]}
    old = avro(registry, OLD).encoder("t")(pa.RecordBatch.from_pydict(rows))
    new = avro(registry, NEW).encoder("t")(pa.RecordBatch.from_pydict({**rows, "more": [7, None]}))
    assert registry.subjects["t-value"] == [1, 2]
    decode, before = avro(registry, NEW).decoder(), registry.requests
    decoded = decode([*old, *new, *old]).batch.to_pylist()
    assert [row["more"] for row in decoded] == [None, None, 7, None, None, None]
    assert registry.requests == before + 2
    assert avro(registry, OLD).decoder()(new).batch.schema.names == ["id", "text"]


def test_values_that_do_not_fit_are_malformed_one_by_one(registry: Registry) -> None:
    good = avro(registry, OLD).encoder("t")(pa.RecordBatch.from_pydict({"id": [1], "text": ["a"]}))[0]
    other = avro(registry, OTHER).encoder("u")(pa.RecordBatch.from_pydict({"id": ["x"], "text": ["a"]}))[0]
    assert good is not None
    result = avro(registry, OLD).decoder()([good, b"{}", other, b"\0\0\0\0\x63ab", good[:6], None, good])
    assert result.batch.column("id").to_pylist() == [1, 1]
    assert result.rows is not None
    assert result.rows.tolist() == [0, 6]
    reasons = [each.reason for each in result.malformed]
    parts = [
        "no frame",
        "schema 2 of the message cannot be read",
        "schema 99: Schema not found",
        "schema 1",
        "tombstone",
    ]
    assert all(part in reason for part, reason in zip(parts, reasons, strict=True)), reasons


def test_a_row_that_the_avro_schema_cannot_hold_is_named(registry: Registry) -> None:
    encode = avro(registry, OLD).encoder("t")
    with pytest.raises(DataRejected, match="topic 't': a row does not fit the Avro schema"):
        encode(pa.RecordBatch.from_pydict({"id": ["x"], "text": ["a"]}))


def test_an_incompatible_schema_is_refused_before_the_first_row(registry: Registry) -> None:
    avro(registry, OLD).encoder("t")
    with pytest.raises(JobRejected, match=r"subject 't-value': .*incompatible.*write a compatible schema"):
        avro(registry, OTHER).encoder("t")


def test_a_registry_that_is_down_is_an_outage_and_a_refused_login_is_not(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = KafkaAvro(SchemaRegistry("http://127.0.0.1:1"), OLD)
    with pytest.raises(EnvironmentFailure, match=r"schema registry http://127\.0\.0\.1:1: subject") as error:
        absent.encoder("t")
    assert is_outage(error.value)
    registry.user = "weir:right"
    monkeypatch.setenv("WEIR_SECRET_REGISTRY", "wrong")
    option = {"basic.auth.user.info": "weir:${secret:REGISTRY}"}
    with pytest.raises(JobRejected, match=r"Unauthorized: check `basic\.auth\.user\.info`") as refusal:
        avro(registry, OLD, **option).encoder("t")
    assert "wrong" not in str(refusal.value)
    monkeypatch.setenv("WEIR_SECRET_REGISTRY", "right")
    avro(registry, OLD, **option).encoder("t")


BAD: list[tuple[Any, str]] = [
    ("{", "format.schema: is not JSON"),
    ('"long"', "format.schema: must be an Avro schema of a record"),
    (record({"name": "a", "type": "nothing"}), "format.schema: is no Avro schema"),
    (record({"name": "a", "type": ["int", "string"]}), r"format.schema: record\.a: a union of several types"),
]


@pytest.mark.parametrize(("schema", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_avro_schemas_are_named(schema: str, message: str) -> None:
    with pytest.raises(JobRejected, match=message):
        KafkaAvro(SchemaRegistry("http://h"), schema).check()


@pytest.mark.parametrize(
    ("url", "options", "message"),
    [
        ("registry", {}, r"registry\.url: must be"),
        ("http://me:hunter2@h", {}, r"registry\.url: put the login into the option"),
        ("http://h", {"timeout": "1"}, r"registry\.options\.timeout: must be one of"),
        ("http://h", {"basic.auth.user.info": "me:hunter2"}, "contains a password"),
    ],
)
def test_bad_settings_of_a_registry_are_named(url: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(JobRejected, match=message) as error:
        KafkaAvro(SchemaRegistry(url, options), OLD).check()
    assert "hunter2" not in str(error.value)


# ---------------------------------------------------------------- Protobuf


def message_class(name: str = "Row", *, without: str = "") -> Any:
    """A class as protoc generates it, from a file of its own."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{name}{without}.proto", package="tests", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    color = file.enum_type.add(name="Color")
    for number, text in enumerate(["NONE", "RED"]):
        color.value.add(name=text, number=number)
    file.message_type.add(name="First")
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="n", number=1, type=5, label=1)
    row = file.message_type.add(name=name)
    entry = row.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=3, label=1)
    type_name = f".tests.{name}"
    row.field.add(name="id", number=1, type=3, label=1)
    row.field.add(name="text", number=2, type=9, label=1, proto3_optional=True, oneof_index=0)
    row.oneof_decl.add(name="_text")
    row.field.add(name="raw", number=3, type=12, label=1)
    row.field.add(name="big", number=4, type=4, label=1)
    row.field.add(name="color", number=5, type=14, label=1, type_name=".tests.Color")
    row.field.add(name="tags", number=6, type=9, label=3)
    row.field.add(name="counts", number=7, type=11, label=3, type_name=f"{type_name}.CountsEntry")
    row.field.add(name="inner", number=8, type=11, label=1, type_name=".tests.Inner")
    row.field.add(name="at", number=9, type=11, label=1, type_name=".google.protobuf.Timestamp")
    row.field.add(name="half", number=10, type=2, label=1)
    for field in [each for each in row.field if each.name == without]:
        row.field.remove(field)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tests.{name}"))


PROTO_ROW = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "text": st.none() | st.text(max_size=9),
        "raw": st.binary(max_size=9),
        "big": st.integers(0, 2**64 - 1),
        "color": st.sampled_from(["NONE", "RED"]),
        "tags": st.lists(st.text(max_size=3), max_size=3),
        "counts": st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=1).map(lambda d: list(d.items())),
        "inner": st.none() | st.fixed_dictionaries({"n": st.integers(0, 9)}),
        "at": st.none() | st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
        "half": st.floats(width=32, allow_nan=False),
    }
)


@pytest.fixture(scope="module")
def protobuf() -> Iterator[tuple[pa.Schema, Any, Any]]:
    yield from coders(lambda registry: KafkaProtobuf(registry, message_class()))


@settings(max_examples=examples(40))
@given(rows=st.lists(PROTO_ROW, min_size=1, max_size=4))
def test_protobuf_values_of_every_type_come_back(protobuf: Any, rows: list[dict[str, Any]]) -> None:
    columns, encode, decode = protobuf
    batch = pa.RecordBatch.from_pylist(rows, columns)
    decoded = decode(encode(batch))
    assert decoded.malformed == ()
    assert decoded.batch.to_pylist() == batch.to_pylist()


def test_protobuf_of_an_older_writer_has_default_values_and_rubbish_is_malformed(registry: Registry) -> None:
    older, newer = (KafkaProtobuf(SchemaRegistry(registry.url), message_class(without=field)) for field in ("big", ""))
    names = [name for name in newer.columns().names if name != "big"]
    batch = pa.RecordBatch.from_pylist([{"id": 5, "color": "RED", "raw": b"", "half": 0.0, "tags": [], "counts": []}])
    (value,) = older.encoder("t")(batch)
    result = newer.decoder()([value, b"\0\0\0\0\1\0\xff\xff\xff", b"", b"\0\0\0\0\1\x80"])
    row = result.batch.to_pylist()[0]
    assert (row["id"], row["big"], row["color"], row["inner"]) == (5, 0, "RED", None)
    assert set(names) < set(row)
    assert [each.row for each in result.malformed] == [1, 2, 3]
    with pytest.raises(DataRejected, match="topic 't': a row does not fit the message"):
        newer.encoder("t")(pa.RecordBatch.from_pydict({"other": [1]}))
    with pytest.raises(JobRejected, match="must be a message class"):
        KafkaProtobuf(SchemaRegistry(registry.url), str).check()
