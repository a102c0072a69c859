"""Form fields from a JSON schema of parameters, and form values as JSON parameters.

Supported is the part of JSON schema that parameter structs produce: scalars with bounds, choices, optional values,
defaults, lists and maps of scalars. All other properties (nested objects, unions) become a field for JSON text. The
service validates against the schema; the fields only catch simple mistakes.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from django import forms
from django.core.exceptions import ValidationError
from django.core.validators import RegexValidator

from console import formats
from console.accounts.refusals import Refused
from console.accounts.storable import require_storable
from console.ui.forms.row_fields import RowsField
from runtime.access.redaction import MASK, is_declared_secret, is_secret

Schema = Mapping[str, Any]

_UNITS = ("ms", "s", "bytes", "rows")
#: By the unit of a name: the format of its values, and the unit that says no more than the name.
_QUANTITIES: Mapping[str, tuple[Callable[[Any], formats.Quantity], str]] = {
    "ms": (formats.duration, "ms"),
    "s": (lambda seconds: formats.duration(seconds * 1000), "s"),
    "bytes": (formats.size, "B"),
}
_PATTERN_MESSAGES = dict.fromkeys(("^/", "^(/|$)"), "This must be an absolute path: begin it with /.")
_ELEMENTS = {"array": "items", "object": "additionalProperties"}  #: keyword with the schema of the elements
_TYPES = {"string": "text", "integer": "whole number", "number": "number", "boolean": "yes or no"}


class JsonField(forms.CharField):
    """JSON as text; '' is None."""

    widget = forms.Textarea(attrs={"rows": 4, "class": "json", "spellcheck": "false"})

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value)
        if not text:
            return None
        if text == MASK:
            return text  # stands for a stored secret
        try:
            document = json.loads(text)
            require_storable(document)
        except json.JSONDecodeError as error:
            raise ValidationError(
                f"This is not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
            ) from error
        except RecursionError as error:
            raise ValidationError("This is nested too deeply.") from error
        except Refused as refused:
            raise ValidationError(f"This value cannot be stored: {refused.detail}") from refused
        return document

    def prepare_value(self, value: Any) -> Any:
        return value if isinstance(value, str) or value is None else json.dumps(value, indent=2, ensure_ascii=False)


class JsonChoiceField(forms.TypedChoiceField):
    """A choice of JSON values, encoded as JSON because a select element has text values only."""

    def prepare_value(self, value: Any) -> Any:
        """The option for a version's value or for a submitted value."""
        options = [option for option, _ in cast(list[tuple[str, str]], self.choices)]
        return value if value in options else json.dumps(value)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A property of the schema, with references and optionality resolved."""

    name: str
    schema: Schema
    required: bool
    nullable: bool

    @property
    def kind(self) -> str:
        kind = self.schema.get("type")
        return kind if isinstance(kind, str) else ""


def parameters(schema: Schema) -> tuple[Parameter, ...]:
    """The properties of an object schema, in the author's order."""
    root = _resolve(schema, schema)
    required, properties = set(root.get("required", ())), root.get("properties", {})
    names = [*(name for name in root.get("x-order", ()) if name in properties)] or properties
    return tuple(_parameter(name, properties[name], schema, name in required) for name in names)


def field(parameter: Parameter) -> forms.Field:
    """The form field of a parameter."""
    form_field = _field(parameter)
    if parameter.kind == "string" and "enum" not in parameter.schema and is_secret(parameter.name, parameter.schema):
        if is_declared_secret(parameter.schema):
            form_field.widget.attrs |= {"placeholder": "${secret:NAME}", "autocomplete": "off", "spellcheck": "false"}
        else:
            form_field.widget = forms.PasswordInput(
                render_value=True, attrs={**form_field.widget.attrs, "autocomplete": "new-password"}
            )
    form_field.label = label(parameter)
    if isinstance(form_field, RowsField):
        form_field.widget.title = form_field.label
    form_field.help_text = str(parameter.schema.get("description", ""))
    if "default" in parameter.schema:
        default = parameter.schema["default"]
        form_field.initial = json.dumps(default) if "enum" in parameter.schema else default
    form_field.widget.attrs["data-type"] = _TYPES.get(parameter.kind, "JSON")
    return form_field


def shown_as_text(form_field: forms.Field, value: Any, most: int) -> forms.Field:
    """`form_field`, or a field for JSON text if at most `most` rows cannot keep the given `value`."""
    if not isinstance(form_field, RowsField) or value is None or form_field.can_show(value, most):
        return form_field
    text = JsonField(required=form_field.required, label=form_field.label, help_text=form_field.help_text)
    text.widget.attrs["data-type"] = "JSON"
    return text


def label(parameter: Parameter) -> str:
    """The schema's title, or the name in words."""
    title = parameter.schema.get("title")
    return title if isinstance(title, str) and title else words(parameter.name)


def words(name: str) -> str:
    """The name as a label: `max_disorder_ms` becomes Max disorder (ms)."""
    parts = name.split("_")
    unit = f" ({parts.pop()})" if len(parts) > 1 and parts[-1] in _UNITS else ""
    return " ".join(parts).capitalize() + unit


def describe_params(schema: Schema, params: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """(label, text) of the given parameters in the order of the form; parameters unknown to the schema come last."""
    labels = {parameter.name: label(parameter) for parameter in parameters(schema)}
    names = sorted(params, key=lambda name: list(labels).index(name) if name in labels else len(labels))
    return tuple((labels.get(name, words(name)), _param_text(name, params[name])) for name in names)


def _param_text(name: str, value: Any) -> str:
    """The value as JSON, and a time or size in its usual unit besides: 3600000 (1 h)."""
    if isinstance(value, str):
        return value
    text = json.dumps(value, ensure_ascii=False)
    unit = name.rpartition("_")[2]
    if unit not in _QUANTITIES or isinstance(value, bool) or not isinstance(value, int | float):
        return text
    write, base_unit = _QUANTITIES[unit]
    quantity = write(value)
    return text if quantity.unit == base_unit else f"{text} ({quantity})"


def values(schema: Schema, cleaned: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a submitted form. Empty fields are omitted, so that their defaults apply."""
    pairs = ((parameter, cleaned.get(parameter.name)) for parameter in parameters(schema))
    return {
        parameter.name: value for parameter, value in pairs if value is not None and not _left_empty(parameter, value)
    }


def _left_empty(parameter: Parameter, value: Any) -> bool:
    """Whether a value counts as omitted. An empty text does, unless the default is a non-empty text."""
    return value == "" and not parameter.schema.get("default")


def _parameter(name: str, part: Schema, root: Schema, required: bool) -> Parameter:
    schema = _resolve(part, root)
    options = [_resolve(option, root) for option in (*schema.get("anyOf", ()), *schema.get("oneOf", ()))]
    real = [option for option in options if option.get("type") != "null"]
    nullable = len(real) < len(options)
    if len(real) == 1:
        schema = {**real[0], **{key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}}
    elements = schema.get(_ELEMENTS.get(str(schema.get("type")), ""))
    if isinstance(elements, Mapping):
        schema = {**schema, "element": _parameter("", elements, root, required=True).schema}
    return Parameter(name, schema, required, nullable)


def _resolve(part: Schema, root: Schema) -> Schema:
    """Follows references within the schema; keywords beside a reference are kept.

    A referenced title names a type, not the parameter, and is dropped.
    """
    for _ in range(8):
        reference = part.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return part
        schema: Any = root
        for step in reference[2:].split("/"):
            schema = schema.get(step, {}) if isinstance(schema, Mapping) else {}
        referred = {key: value for key, value in schema.items() if key != "title"}
        part = {**referred, **{key: value for key, value in part.items() if key != "$ref"}}
    return part


def _field(parameter: Parameter) -> forms.Field:
    schema, required = parameter.schema, parameter.required and not parameter.nullable
    if "enum" in schema:
        return _choice(schema["enum"], required, schema.get("default") is not None)
    match parameter.kind:
        case "boolean":
            return forms.BooleanField(required=False)
        case "integer":
            low, high = _bounds(schema, 1)
            return forms.IntegerField(required=required, min_value=low, max_value=high)
        case "number":
            low, high = _bounds(schema, 0)
            return forms.FloatField(required=required, min_value=low, max_value=high)
        case "string":
            return _text(schema, required)
        case "array" | "object":
            return _rows(parameter, required) or JsonField(required=required)
        case _:
            return JsonField(required=required)


def _rows(parameter: Parameter, required: bool) -> forms.Field | None:
    """Rows for a list or a map of scalars. None for other values, and for a default that rows cannot show."""
    schema = parameter.schema
    element = Parameter("", schema.get("element", {}), required=True, nullable=False)
    is_scalar = element.kind in ("string", "integer", "number", "boolean") or "enum" in element.schema
    if not is_scalar or schema.get("properties") or schema.get("prefixItems"):
        return None
    has_names, default = parameter.kind == "object", schema.get("default")
    rows = RowsField(_element(element, has_names), has_names=has_names, required=required, keeps_empty=bool(default))
    return rows if not default or rows.can_show(default) else None


def _element(element: Parameter, has_names: bool) -> forms.Field:
    """The field of an element. Selects have an empty choice for blank rows; texts of a map may be empty."""
    if element.kind == "boolean" or "enum" in element.schema:
        options = element.schema.get("enum", [True, False])
        choices = [("", "–"), *((json.dumps(option), str(option)) for option in options)]
        return JsonChoiceField(choices=choices, coerce=json.loads, empty_value=None)
    if element.kind == "string" and has_names:
        return _text(element.schema, bool(element.schema.get("minLength")))
    return _field(element)


def _choice(options: list[Any], required: bool, has_default: bool) -> forms.Field:
    """A select field. With a default it may be missing from a request, though the page always sends a choice."""
    pairs = [(json.dumps(option), str(option)) for option in options if option is not None]
    choices = pairs if required or has_default else [("", "default"), *pairs]
    return JsonChoiceField(choices=choices, required=required, coerce=json.loads, empty_value=None)


def _bounds(schema: Schema, step: int) -> tuple[Any, Any]:
    """Bounds of a number. Exclusive bounds of integers become inclusive; only the service checks those of floats."""
    low, high = schema.get("minimum"), schema.get("maximum")
    if step and "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + step
    if step and "exclusiveMaximum" in schema:
        high = schema["exclusiveMaximum"] - step
    return low, high


def _text(schema: Schema, required: bool) -> forms.Field:
    pattern = schema.get("pattern")
    said = _PATTERN_MESSAGES.get(str(pattern), f"This must match the pattern {pattern}.")
    checks = [RegexValidator(pattern, said)] if isinstance(pattern, str) else []
    return forms.CharField(
        required=required,
        min_length=schema.get("minLength"),
        max_length=schema.get("maxLength"),
        validators=checks,
        strip=False,
    )
