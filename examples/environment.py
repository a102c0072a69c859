"""The stack that the examples run on: its data folder, and the variables of its processes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from stack.processes import MARK
from stack.settings import ROOT, read_env_file


class NoStack(Exception):
    """No stack has been started; the text explains how to start it."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The data folder of a stack, and the variables that the stack has written to `run/env`."""

    var: Path
    variables: dict[str, str] = field(repr=False)

    @classmethod
    def read(cls, var: Path | None) -> Self:
        """The environment of the stack in `var`. Raises NoStack."""
        folder = (var or Path(os.environ.get("WEIR_VAR") or "var")).resolve()
        try:
            return cls(folder, read_env_file(folder))
        except FileNotFoundError:
            raise NoStack(f"no stack has been started with its data in {folder}: run `make up` first") from None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.variables['WEIR_HTTP_PORT']}"

    @property
    def storage(self) -> str:
        """The storage of checkpoints: a folder, or the URI of a bucket."""
        return self.variables["WEIR_STORAGE"]

    @property
    def event_log(self) -> Path | None:
        """Folder of Spark's event logs; None if there is none."""
        folder = self.variables.get("WEIR_SPARK_EVENT_LOG")
        return Path(folder) if folder else None

    @property
    def user(self) -> str:
        return self.variables.get("WEIR_ADMIN_USER", "operator")

    @property
    def password(self) -> str:
        return (self.var / "run" / "password").read_text(encoding="utf-8").strip()

    def for_children(self) -> dict[str, str]:
        imports = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        return {**os.environ, **self.variables, MARK: str(self.var), "PYTHONPATH": imports}
