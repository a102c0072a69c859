"""Secrets in the parameters of a request: masks that stand for stored secrets, and refusal of literal secrets."""

import json
from collections.abc import Mapping
from typing import Any

from console.accounts.refusals import Refused
from runtime.access.redaction import MASK, REFERENCE, Schema, declared_secrets, mask
from runtime.access.spark_settings import VALUES


def unmask(values: Mapping[str, Any], base: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """`values` with each mask replaced by the secret at the same position in `base`, the previous version's parameters.

    Raises:
        Refused: names the parameter whose mask has no stored secret.
    """
    masks = mask(base, schema)
    params = {name: _restore(value, masks.get(name), base.get(name)) for name, value in values.items()}
    for name, value in params.items():
        if MASK in json.dumps(value):
            detail = f"params.{name}: {MASK} stands for a secret that is not stored; enter the secret itself."
            raise Refused("masked-value", detail, field=f"params.{name}")
    return params


def mask_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` of a version. Spark settings outside the list may hold credentials, so their values are masked."""
    spark = settings.get("spark")
    if not isinstance(spark, dict):
        return dict(settings)
    return {**settings, "spark": {name: value if name in VALUES else MASK for name, value in spark.items()}}


def unmask_settings(values: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with each masked Spark setting replaced by that of `base`, the previous version's settings.

    Raises:
        Refused: names the setting whose mask has no stored value.
    """
    spark, stored = values.get("spark"), base.get("spark", {})
    if not isinstance(spark, dict):
        return dict(values)
    for name, value in spark.items():
        if value == MASK and name not in stored:
            detail = f"settings.spark: {MASK} stands for a value that is not stored; enter the value of {name} itself."
            raise Refused("masked-value", detail, field="settings.spark")
    return {**values, "spark": {name: stored[name] if value == MASK else value for name, value in spark.items()}}


def _restore(entry: Any, masked: Any, base: Any) -> Any:
    if entry == masked:
        return base
    match entry, masked, base:
        case dict(), dict(), dict():
            return {key: _restore(value, masked.get(key), base.get(key)) for key, value in entry.items()}
        case list(), list(), list() if len(entry) == len(masked):
            return [_restore(*three) for three in zip(entry, masked, base, strict=True)]
        case _:
            return entry


def require_references(params: Mapping[str, Any], schema: Schema) -> None:
    """Checks that each declared secret is a reference or a mask. Whether the reference is valid, its connector checks.

    Raises:
        Refused: names the parameter that has a literal secret.
    """
    for path, text in declared_secrets(params, schema):
        if MASK not in text and not REFERENCE.search(text):
            detail = "a secret must be a reference, such as ${secret:NAME}; set the secret where the job runs."
            raise Refused("literal-secret", f"params.{path}: {detail}", field=f"params.{path}")
