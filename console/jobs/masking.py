"""Secrets in the parameters of a request: masks that stand for stored secrets, and refusal of literal secrets."""

import json
from collections.abc import Mapping
from typing import Any

from console.accounts.refusals import Refused
from runtime.access.redaction import MASK, REFERENCE, Schema, declared_secrets, mask
from runtime.access.spark_settings import VALUES


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


def mask_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` of a version. Spark settings outside the list may hold credentials, so their values are masked."""
    spark = settings.get("spark")
    if not isinstance(spark, dict):
        return dict(settings)
    return {**settings, "spark": {name: value if name in VALUES else MASK for name, value in spark.items()}}


def unmask_settings(given: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    """`given` with each masked Spark setting replaced by that of `kept`, the previous version's settings.

    Raises:
        Refused: names the setting whose mask has no stored value.
    """
    spark, stored = given.get("spark"), kept.get("spark", {})
    if not isinstance(spark, dict):
        return dict(given)
    for name, value in spark.items():
        if value == MASK and name not in stored:
            detail = f"settings.spark: {MASK} stands for a value that is not stored; enter the value of {name} itself."
            raise Refused("masked-value", detail, field="settings.spark")
    return {**given, "spark": {name: stored[name] if value == MASK else value for name, value in spark.items()}}


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
