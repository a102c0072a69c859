"""Writes docs/settings.md, the reference of the settings of a job version, from `JobSettings`: `make settings`."""

from pathlib import Path
from typing import Any, Final

import msgspec

from runtime.core.job.settings import JobSettings

PAGE: Final = Path(__file__).parent.parent / "docs" / "settings.md"
_HEAD: Final = """# Settings of a job

A version of a job has these settings beside its parameters and its parallelism. The form of *New job* and *New version*
shows them, `weir apply` reads them from the field `settings` of a definition, and the API from the field of the same
name. Times are milliseconds. A setting that is left out has its default; *empty* is `null` in YAML and JSON.

`weir.run_local` takes the settings of checkpoints as `weir.CoordinatorSettings`, and a restart strategy.

`make settings` writes this page from the code.

| Setting | Values | Default | Meaning |
|---|---|---|---|
"""


def text() -> str:
    """The whole page."""
    parts: dict[str, Any] = msgspec.json.schema(JobSettings)["$defs"]
    return _HEAD + "".join(
        f"| `{name}` | {_values(setting, parts)} | {_default(setting['default'])} | {setting['description']} |\n"
        for name, setting in parts["JobSettings"]["properties"].items()
    )


def _values(setting: dict[str, Any], parts: dict[str, Any]) -> str:
    if "$ref" in setting:
        return _values(parts[setting["$ref"].rpartition("/")[2]], parts)
    if "anyOf" in setting:
        return f"{_values(setting['anyOf'][0], parts)}, or empty"
    if "enum" in setting:
        return ", ".join(f"`{value}`" for value in setting["enum"])
    if setting["type"] == "object":
        return "texts by name"
    kind = "whole number" if setting["type"] == "integer" else "number"
    return f"{kind}, {setting['minimum']:,} to {setting['maximum']:,}"


def _default(value: Any) -> str:
    if value is None or value == {}:
        return "empty"
    return f"`{value}`" if isinstance(value, str) else f"{value:,}"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
