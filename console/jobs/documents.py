"""The values of a version as a YAML document. `create_version` validates them, as those of a form."""

import json
from typing import Any, Final

import msgspec
import yaml

from console.accounts.refusals import InvalidField
from console.jobs.inputs import parse_stored_settings
from console.jobs.masking import mask_settings
from console.jobs.models import JobVersion
from runtime.access.redaction import Schema, mask
from runtime.yaml_text import load_yaml

#: Field -> its type and the words for it.
_FIELDS: Final[dict[str, tuple[type, str]]] = {
    "parallelism": (int, "a whole number"),
    "max_parallelism": (int, "a whole number"),
    "params": (dict, "a mapping"),
    "settings": (dict, "a mapping"),
}
_REQUIRED: Final = ("parallelism", "params")
MAX_DOCUMENT_CHARACTERS: Final = 100_000


def write_document(version: JobVersion, schema: Schema) -> str:
    """The document of a version, with all settings. Secrets are masked."""
    settings = mask_settings({**msgspec.to_builtins(parse_stored_settings(version.settings)), **version.settings})
    values = {"parallelism": version.parallelism, "max_parallelism": version.max_parallelism}
    document = {**values, "params": mask(version.params, schema), "settings": settings}
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return text


def read_document(text: str) -> dict[str, Any]:
    """The arguments of `create_version` in a document. Raises InvalidField, naming the field at fault."""
    if len(text) > MAX_DOCUMENT_CHARACTERS:
        raise InvalidField("document", f"must have {MAX_DOCUMENT_CHARACTERS} characters at most")
    try:
        document = load_yaml(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: an impossible date or number
        raise InvalidField("document", f"is not YAML: {error}") from error
    if not isinstance(document, dict):
        raise InvalidField("document", f"must have the fields {', '.join(_FIELDS)}")
    for name in document:
        if name not in _FIELDS:
            raise InvalidField("document", f"{name}: there is no such field; the fields are {', '.join(_FIELDS)}")
    for name in _REQUIRED:
        if name not in document:
            raise InvalidField("document", f"{name}: this field is required")
    for name, value in document.items():
        kind, words = _FIELDS[name]
        if type(value) is not kind and not (name == "max_parallelism" and value is None):
            raise InvalidField("document", f"{name}: must be {words}, not {type(value).__name__}")
    if not _is_json(document):
        raise InvalidField("document", "has a value that JSON does not have, such as a date: write it in quotes")
    return document


def _is_json(document: dict[str, Any]) -> bool:
    """Whether JSON has the same values. YAML also has dates, binary values, NaN, and keys that are no texts."""
    try:
        same: bool = json.loads(json.dumps(document, allow_nan=False)) == document
    except (TypeError, ValueError, RecursionError):
        return False
    return same
