"""Replaces masks that a form or a program sends back by the secrets of the previous version."""

import json
from collections.abc import Mapping
from typing import Any

from console.accounts.refusals import Refused
from runtime.redaction import MASK, Schema, mask


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
