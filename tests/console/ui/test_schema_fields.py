"""Parameters as form fields, and back."""

from typing import Annotated, Any, Literal

import msgspec
import pytest
from django import forms

from console.jobs.inputs import SETTINGS_SCHEMA
from console.ui.forms import SchemaForm
from console.ui.schema_fields import JsonChoiceField
from tests.console.ui.rows import SCHEMA


class Params(msgspec.Struct):
    """What a pipeline would declare."""

    path: str
    rows: Annotated[int, msgspec.Meta(ge=1, le=9)] = 3
    share: float | None = None
    strict: bool = False
    mode: Literal["fast", "safe"] = "safe"
    names: list[str] = []


STRUCT = msgspec.json.schema(Params)


def filled(schema: dict[str, Any], **values: str) -> SchemaForm:
    form = SchemaForm(schema, values)
    form.is_valid()
    return form


def test_a_struct_becomes_one_field_per_member_in_its_order() -> None:
    fields = SchemaForm(STRUCT).fields
    kinds = {name: type(field) for name, field in fields.items()}
    assert list(fields) == ["path", "rows", "share", "strict", "mode", "names"]
    assert kinds["rows"] is forms.IntegerField
    assert kinds["share"] is forms.FloatField
    assert kinds["strict"] is forms.BooleanField
    assert kinds["mode"] is JsonChoiceField
    assert fields["path"].required
    assert not fields["share"].required
    assert fields["rows"].initial == 3


def test_values_come_back_as_json_types() -> None:
    form = filled(STRUCT, path="/in", rows="4", share="0.5", strict="on", mode='"fast"', names='["a", "b"]')
    assert form.errors == {}
    assert form.values == {"path": "/in", "rows": 4, "share": 0.5, "strict": True, "mode": "fast", "names": ["a", "b"]}


def test_what_is_left_empty_is_left_out_so_that_defaults_hold() -> None:
    form = filled(STRUCT, path="/in", rows="", share="", mode='"safe"', names="")
    assert form.values == {"path": "/in", "strict": False, "mode": "safe"}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("path", "", "required"), ("rows", "10", "less than or equal to 9"), ("rows", "x", "whole number"),
     ("mode", '"wild"', "valid choice"), ("names", "[a", "not JSON")],
)  # fmt: skip
def test_slips_are_named_at_their_field(field: str, value: str, said: str) -> None:
    form = filled(STRUCT, **{"path": "/in", "mode": '"safe"', field: value})
    assert said in form.errors[field][0]


def test_a_plain_schema_works_too_and_units_stand_in_brackets() -> None:
    fields = SchemaForm(SCHEMA).fields
    assert fields["max_disorder_ms"].label == "Max disorder (ms)"
    assert fields["input"].help_text == "Folder that is watched for flight files."
    assert fields["on_malformed"].initial == '"fail"'


def test_an_empty_schema_has_no_fields() -> None:
    assert SchemaForm({}).fields == {}
    assert SchemaForm({"$ref": "#/$defs/Nowhere"}).fields == {}


def test_a_schema_that_refers_to_itself_ends() -> None:
    assert SchemaForm({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}).fields == {}


def test_a_type_of_its_own_gives_its_options_but_not_its_name() -> None:
    mode = SchemaForm(SETTINGS_SCHEMA).fields["checkpoint_mode"]
    assert isinstance(mode, forms.TypedChoiceField)
    assert mode.label == "Checkpoint mode"
    assert mode.initial == '"exactly_once"'
    assert mode.choices == [('"at_least_once"', "at_least_once"), ('"exactly_once"', "exactly_once")]


def test_settings_are_drawn_from_their_struct_with_bounds_and_help() -> None:
    form = SchemaForm(SETTINGS_SCHEMA)
    interval = form.fields["checkpoint_interval_ms"]
    assert isinstance(interval, forms.IntegerField)
    assert (interval.initial, interval.min_value) == (5000, 100)
    assert all(field.help_text for field in form.fields.values())
    assert list(form.fields) == list(SETTINGS_SCHEMA["$defs"]["JobSettings"]["properties"])
