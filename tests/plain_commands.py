"""Writes `weir/control/operations.json`: the commands of `weir` that do nothing but request an operation.

`weir` knows the console by REST only, so the file takes the texts and parameters of the registry to it. Part of `make
openapi`.
"""

import json
import os
from enum import EnumType, StrEnum
from pathlib import Path
from typing import Any, Final, cast

import django
import msgspec

FILE: Final = Path(__file__).parent.parent / "weir" / "control" / "operations.json"


def plain_commands() -> list[dict[str, Any]]:
    from console.operations.registry import operation_types

    return [
        {
            "kind": each.kind.value, "help": each.command.help, "question": each.command.question,
            "arguments": [
                {
                    "name": field.name, "metavar": each.command.metavars.get(field.name, field.name.upper()),
                    "choices": _choices(field.type),
                }
                for field in msgspec.structs.fields(each.params)
                if field.required and field.name != "checkpoint"
            ],
            "options": dict(each.command.options), "needs_option": each.command.needs_option,
        }
        for each in operation_types()
        if each.command is not None and each.params is not None
    ]  # fmt: skip


def _choices(type_: Any) -> list[str] | None:
    """The values of an enumeration; None for other types."""
    return [str(each.value) for each in cast("type[StrEnum]", type_)] if isinstance(type_, EnumType) else None


def text() -> str:
    return json.dumps(plain_commands(), indent=1) + "\n"


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
    django.setup()
    FILE.write_text(text())
