"""Converts a caller's input to typed values, or raises a refusal that names the field."""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match

from console.accounts.refusals import InvalidField, Refused
from runtime.access.redaction import MASK, is_secret, redact
from runtime.core.job.settings import JobSettings

T = TypeVar("T")

#: JSON schema of a version's settings: types, bounds, defaults and descriptions, for the form and the OpenAPI document.
SETTINGS_SCHEMA: Final[dict[str, Any]] = msgspec.json.schema(JobSettings)

_AT = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`")
_CONTRADICTING = re.compile(r"^`(?P<name>\w+)` must ")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")


def convert_input(values: Any, target: type[T], prefix: str) -> T:
    """Converts `values` (JSON values) to `target`.

    Raises:
        Refused: names the field below `prefix` that is unknown, missing or out of bounds.
    """
    try:
        return msgspec.convert(values, target)
    except msgspec.ValidationError as error:
        message = str(error)
    at = _AT.search(message)
    match = _UNKNOWN.search(message) or _MISSING.search(message) or _CONTRADICTING.match(message)
    parts = [prefix, at["path"] if at else "", match["name"] if match else ""]
    field = ".".join(part for part in parts if part)
    what = message[: at.start()] if at else message
    raise InvalidField(field, f"{what[0].lower()}{what[1:]}")


def parse_settings(values: dict[str, Any]) -> JobSettings:
    """The settings of a version, with defaults filled in.

    Raises:
        Refused: names the setting that is unknown or out of bounds.
    """
    return convert_input(values, JobSettings, "settings")


def parse_stored_settings(stored: Mapping[str, Any]) -> JobSettings:
    """The settings of a version without those of Spark, which today's list may refuse. The job master refuses them."""
    return convert_input({name: value for name, value in stored.items() if name != "spark"}, JobSettings, "settings")


def check_params(params: dict[str, Any], schema: dict[str, Any]) -> None:
    """Validates a pipeline's parameters against its published JSON schema.

    Raises:
        Refused: names the parameter at fault.
    """
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise Refused(
            "bad-schema", f"The pipeline publishes a broken schema: {error.message}.", field="pipeline"
        ) from error
    worst = best_match(Draft202012Validator(schema).iter_errors(params))
    if worst is not None:
        field = ".".join(["params", *(str(part) for part in worst.absolute_path)])
        raise InvalidField(field, _message(worst, params, schema))


def _message(worst: ValidationError, params: dict[str, Any], schema: dict[str, Any]) -> str:
    """The validation error; a secret value in it is masked."""
    name = next((str(part) for part in reversed(worst.absolute_path) if isinstance(part, str)), "")
    is_hidden = is_secret(name, worst.schema if isinstance(worst.schema, dict) else {})
    message = worst.message.replace(repr(worst.instance), MASK) if is_hidden else worst.message
    return redact(message, params, schema)
