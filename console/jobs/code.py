"""The code that a run executes, beside the code from which its version was compiled."""

from typing import Any

import msgspec

from console.jobs.models import JobVersion, Run
from runtime.core.job.code_identity import CodeIdentity


def code_of_version(version: JobVersion) -> CodeIdentity | None:
    """None: earlier software compiled the version."""
    return _identity((version.graph or {}).get("code"))


def code_of_run(run: Run) -> CodeIdentity | None:
    """None: no job master has started, or earlier software ran it."""
    return _identity(run.code)


def other_code(run: Run) -> str:
    """How the code that the run executes differs from that of its version, in a sentence; "" if they are the same."""
    defined, executed = code_of_version(run.version), code_of_run(run)
    if defined is None or executed is None or defined == executed:
        return ""
    number, executes = run.version.number, "executed" if run.is_terminal else "executes"
    if (defined.package, defined.version) != (executed.package, executed.version):
        before = defined.version if defined.package == executed.package else str(defined)
        change = f"Run {run.pk} {executes} code of {executed}; version {number} was defined with {before}."
        return change if defined.graph == executed.graph else f"{change} The graphs differ."
    return f"Run {run.pk} {executes} code of {executed} whose graph differs from the graph of version {number}."


def _identity(stored: Any) -> CodeIdentity | None:
    return None if stored is None else msgspec.convert(stored, CodeIdentity)
