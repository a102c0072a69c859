"""Parameters as form fields, and back."""

import json
from typing import Annotated, Any, Literal

import msgspec
import pytest
from django import forms

from console.jobs.inputs import SETTINGS_SCHEMA
from console.ui.forms.forms import SchemaForm
from console.ui.forms.row_fields import BLANK_ROWS, MAX_ROWS, RowsField
from console.ui.forms.schema_fields import JsonChoiceField, JsonField, describe_params
from tests.console.ui.rows import SCHEMA


class Params(msgspec.Struct):
    """What a pipeline would declare."""

    path: str
    rows: Annotated[int, msgspec.Meta(ge=1, le=9)] = 3
    share: float | None = None
    strict: bool = False
    mode: Literal["fast", "safe"] = "safe"
    names: list[str] = []
    sizes: dict[str, Annotated[int, msgspec.Meta(ge=1)]] = {}
    parts: list[Literal["a", "b"]] | None = None
    flags: dict[str, bool] = {}
    cuts: list[float] = []
    notes: dict[str, str] = {}
    limits: dict[str, int] | None = None
    pairs: list[list[int]] = []


STRUCT = msgspec.json.schema(Params)
STRUCT["$defs"]["Params"]["properties"]["cuts"]["default"] = [0.5]


def filled(schema: dict[str, Any], **values: Any) -> SchemaForm:
    form = SchemaForm(schema, values)
    form.is_valid()
    return form


def test_a_struct_becomes_one_field_per_member_in_its_order() -> None:
    fields = SchemaForm(STRUCT).fields
    kinds = {name: type(field) for name, field in fields.items()}
    assert list(fields)[:6] == ["path", "rows", "share", "strict", "mode", "names"]
    assert [kinds[name] for name in ("names", "sizes", "parts", "flags", "cuts", "notes")] == [RowsField] * 6
    assert kinds["pairs"] is JsonField
    assert kinds["rows"] is forms.IntegerField
    assert kinds["share"] is forms.FloatField
    assert kinds["strict"] is forms.BooleanField
    assert kinds["mode"] is JsonChoiceField
    assert fields["path"].required
    assert not fields["share"].required
    assert fields["rows"].initial == 3


def test_values_come_back_as_json_types() -> None:
    form = filled(STRUCT, path="/in", rows="4", share="0.5", strict="on", mode='"fast"', names=["a", "b"], cuts=["0.5"])
    assert form.errors == {}
    assert form.values == {
        "path": "/in", "rows": 4, "share": 0.5, "strict": True, "mode": "fast", "names": ["a", "b"], "cuts": [0.5]
    }  # fmt: skip


def test_what_is_left_empty_is_left_out_so_that_defaults_hold() -> None:
    form = filled(STRUCT, path="/in", rows="", share="", mode='"safe"', names=[], cuts=["1"])
    assert form.values == {"path": "/in", "strict": False, "mode": "safe", "cuts": [1.0]}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("path", "", "required"), ("rows", "10", "less than or equal to 9"), ("rows", "x", "whole number"),
     ("mode", '"wild"', "valid choice"), ("pairs", "[a", "not JSON")],
)  # fmt: skip
def test_slips_are_named_at_their_field(field: str, value: str, said: str) -> None:
    form = filled(STRUCT, **{"path": "/in", "mode": '"safe"', field: value})
    assert said in form.errors[field][0]


def test_rows_become_lists_and_maps_and_blank_rows_are_left_out() -> None:
    form = filled(
        STRUCT, path="/in", mode='"safe"', names=["a", "", "b", ""], parts=['"b"', "", '"a"'], cuts=["", ""],
        **{"sizes-name": ["x", "", "y"], "sizes": ["1", "", "2"], "flags-name": ["on", ""], "flags": ["true", ""],
           "notes-name": ["empty", ""], "notes": ["", ""]},
    )  # fmt: skip
    assert form.errors == {}
    lists = {"names": ["a", "b"], "parts": ["b", "a"], "cuts": []}
    maps = {"sizes": {"x": 1, "y": 2}, "flags": {"on": True}, "notes": {"empty": ""}}
    assert form.values == {"path": "/in", "strict": False, "mode": "safe", **lists, **maps}


@pytest.mark.parametrize(
    ("values", "field", "errors"),
    [
        ({"sizes-name": ["x", "y", "x"], "sizes": ["0", "z", "3"]}, "sizes",
         ["Row 1: Ensure this value is greater than or equal to 1.", "Row 2: Enter a whole number."]),
        ({"sizes-name": ["x", "x"], "sizes": ["1", "3"]}, "sizes", ["Row 2: the name x is used twice."]),
        ({"sizes-name": ["", ""], "sizes": ["", "4"]}, "sizes", ["Row 2: a value needs a name."]),
        ({"sizes-name": ["x"], "sizes": [""]}, "sizes", ["Row 1: This field is required."]),
        ({"cuts": ["1", "", "a"]}, "cuts", ["Row 3: Enter a number."]),
        ({"parts": ['"c"']}, "parts", ['Row 1: Select a valid choice. "c" is not one of the available choices.']),
    ],
)  # fmt: skip
def test_an_error_names_its_row(values: dict[str, Any], field: str, errors: list[str]) -> None:
    form = filled(STRUCT, path="/in", mode='"safe"', **values)
    assert form.errors[field] == errors
    assert str(form[field]).count("data-row>") == len(values[field]) + BLANK_ROWS, "the rows are shown again"


def test_rows_show_the_values_of_a_version() -> None:
    form = SchemaForm(STRUCT, initial={"names": ["a&b"], "sizes": {"x": 7}, "flags": {"on": False}})
    assert 'name="names" value="a&amp;b"' in str(form["names"])
    assert 'name="sizes-name" value="x"' in str(form["sizes"])
    assert 'name="sizes" value="7"' in str(form["sizes"])
    assert '<option value="false" selected>False</option>' in str(form["flags"])
    assert form["names"].id_for_label == "id_names_1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("names", ["a", ""]), ("names", ["two\nlines"]), ("names", ["a"] * (MAX_ROWS + 1)), ("parts", []),
        ("sizes", {"": 1}), ("notes", {"two\r\nlines": "a"}), ("notes", {"a": "two\nlines"}), ("limits", {}),
    ],
)  # fmt: skip
def test_a_value_that_rows_would_change_is_json_and_stays(name: str, value: Any) -> None:
    form = SchemaForm(STRUCT, {name: json.dumps(value), "path": "/in", "mode": '"safe"'}, initial={name: value})
    assert isinstance(form.fields[name], JsonField)
    assert form.is_valid()
    assert form.values[name] == value


def test_the_rows_of_a_form_have_a_limit_together() -> None:
    """Each list would fit by itself."""
    form = SchemaForm(STRUCT, initial={"names": ["a"] * (MAX_ROWS - 1), "sizes": {"x": 1, "y": 2}, "cuts": [0.5]})
    kinds = {name: type(form.fields[name]) for name in ("names", "sizes", "cuts")}
    assert kinds == {"names": RowsField, "sizes": JsonField, "cuts": RowsField}


@pytest.mark.parametrize(("name", "value"), [("names", []), ("sizes", {}), ("cuts", []), ("names", ["a"] * MAX_ROWS)])
def test_a_value_that_rows_keep_has_rows(name: str, value: Any) -> None:
    """An empty value is that of the default, or the default is not empty."""
    assert isinstance(SchemaForm(STRUCT, initial={name: value}).fields[name], RowsField)


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


def test_times_and_sizes_are_shown_in_their_usual_units_too() -> None:
    """An hour was 3600000."""
    params = {"gap_ms": 3_600_000, "pause_ms": 40, "age_s": 7_200, "rest_s": 5, "block_bytes": 65_536, "max_rows": 9,
              "all_ms": True, "none_ms": None, "text_ms": "a"}  # fmt: skip
    assert [text for _, text in describe_params({}, params)] == [
        "3600000 (1 h)", "40", "7200 (2 h)", "5", "65536 (64 KiB)", "9", "true", "null", "a",
    ]  # fmt: skip
