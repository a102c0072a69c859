"""Secrets in the parameters of a request: masks that stand for stored secrets, and refusal of literal secrets."""

import json
from collections.abc import Mapping
from typing import Any

from console.accounts.refusals import Refused
from runtime.redaction import MASK, REFERENCE, Schema, declared_secrets, mask


def unmask(given: Mapping[str, Any], kept: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """`given` with each mask replaced by the secret at the same position in `kept`, the previous version's parameters.

    Raises:
        Refused: names the parameter whose mask has no stored secret.
    """
    shown = mask(kept, schema)
    found = {name: _restore(value, shown.get(name), kept.get(name)) for name, value in given.items()}
    for name, value in found.items():
        if MASK in json.dumps(value):
            detail = f"params.{name}: {MASK} stands for a secret that is not stored; enter the secret itself."
            raise Refused("masked-value", detail, field=f"params.{name}")
    return found


def _restore(given: Any, shown: Any, kept: Any) -> Any:
    if given == shown:
        return kept
    match given, shown, kept:
        case dict(), dict(), dict():
            return {key: _restore(value, shown.get(key), kept.get(key)) for key, value in given.items()}
        case list(), list(), list() if len(given) == len(shown):
            return [_restore(*three) for three in zip(given, shown, kept, strict=True)]
        case _:
            return given


def require_references(given: Mapping[str, Any], schema: Schema) -> None:
    """Checks that each declared secret is a reference or a mask. Whether the reference is valid, its connector checks.

    Raises:
        Refused: names the parameter that has a literal secret.
    """
    for path, text in declared_secrets(given, schema):
        if MASK not in text and not REFERENCE.search(text):
            detail = "a secret must be a reference, such as ${secret:NAME}; set the secret where the job runs."
            raise Refused("literal-secret", f"params.{path}: {detail}", field=f"params.{path}")
