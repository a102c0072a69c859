"""The code that a run executes, and the code that is installed, beside the code from which a version was compiled."""

from dataclasses import dataclass
from importlib import metadata

import msgspec

from console.jobs.models import JobVersion, Run
from runtime.core.job.code_identity import CodeIdentity


def code_of_version(version: JobVersion) -> CodeIdentity | None:
    """None: the version is not compiled."""
    return None if version.graph is None else msgspec.convert(version.graph["code"], CodeIdentity)


def code_of_run(run: Run) -> CodeIdentity | None:
    """None: no job master has started."""
    return None if run.code is None else msgspec.convert(run.code, CodeIdentity)


def other_code(run: Run) -> str:
    """How the code that the run executes differs from that of its version, in a sentence; "" if they are the same."""
    defined, executed = code_of_version(run.version), code_of_run(run)
    if defined is None or executed is None or defined == executed:
        return ""
    number, executes = run.version.number, "executed" if run.is_terminal else "executes"
    if str(defined) != str(executed):
        before = str(defined).removeprefix(f"{executed.package} ")
        change = f"Run {run.pk} {executes} code of {executed}; version {number} was defined with {before}."
        return change if defined.graph == executed.graph else f"{change} The graphs differ."
    return f"Run {run.pk} {executes} code of {executed} whose graph differs from the graph of version {number}."


@dataclass(frozen=True, slots=True)
class PackageChange:
    """The package that a version was compiled from, and that package as it is installed now, each with its version."""

    before: str
    after: str


def package_change(version: JobVersion) -> PackageChange | None:
    """The change of the installed package since the compilation of `version`; None: there is none, or it is unknown.

    A version that names a package of the storage always has the code of this package. Only a raised version of an
    installed package shows that its code has changed. Hosts that run jobs need the package, this one need not have it.
    """
    defined = code_of_version(version)
    if defined is None or not defined.package or version.package_id is not None:
        return None
    try:
        after = f"{defined.package} {metadata.version(defined.package)}"
    except metadata.PackageNotFoundError:
        return None
    return None if after == str(defined) else PackageChange(str(defined), after)
