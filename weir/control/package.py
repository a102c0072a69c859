"""`weir package`: the code of jobs and its dependencies as a file, which the console stores by its digest.

pip resolves the dependencies in an empty environment that has the metadata of Weir and its libraries, pinned to the
installed versions. It therefore installs what is missing beside them, and refuses a requirement that they do not meet.
"""

import fnmatch
import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click

from runtime.errors import JobRejected
from runtime.io.package_archive import write_archive
from runtime.libraries import PACKAGE_VERSIONS_FILE, base_versions, installed_versions
from weir.control.command import json_option, with_console
from weir.control.console import Console, Refused
from weir.control.output import write_json

DESCRIBE_TIMEOUT_S: Final = 180.0
#: Entries at the top of a project that are results of earlier builds, or environments.
_BUILT: Final = frozenset({".venv", "venv", "build", "dist"})
#: Files of pip about an installation: they name folders of this machine.
_FILES_OF_PIP: Final = ("INSTALLER", "RECORD", "REQUESTED", "direct_url.json")
_PIP_OPTIONS: Final = ("--no-input", "--no-compile", "--disable-pip-version-check")
#: Lines of pip that say nothing about a conflict.
_ADVICE: Final = ("To fix this you could", "1. ", "2. ", "ERROR: ResolutionImpossible", "[notice]", "WARNING")


@click.command()
@click.argument("project", type=click.Path(exists=True, file_okay=False, path_type=Path), default=".")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the file; upload nothing.")
@json_option
def package(project: Path, output: Path | None, as_json: bool) -> None:
    """Packages the pipelines of the project in a folder with their dependencies, and uploads the package.

    The digest that it prints is the field `package` of a definition. Weir and its libraries are not part of a package:
    a requirement that they do not meet is refused.
    """
    if output is None:
        _upload(project, as_json)
        return
    data, about = build(project)
    output.write_bytes(data)
    _write(about, as_json)


@with_console
def _upload(console: Console, project: Path, as_json: bool) -> None:
    data, about = build(project)
    row = console.upload_package(data, DESCRIBE_TIMEOUT_S)
    if row["state"] != "ready":
        raise Refused((row["error"] or {}).get("detail") or f"the package {about['digest']} is still {row['state']}")
    _write(about, as_json)


def _write(about: dict[str, Any], as_json: bool) -> None:
    if as_json:
        write_json(about)
        return
    click.echo(about["digest"])
    names = ", ".join(each["name"] for each in about["pipelines"])
    click.echo(f"{about['size']:,} bytes; pipelines: {names}", err=True)


def build(project: Path) -> tuple[bytes, dict[str, Any]]:
    """The archive of the project's package, and its description with `digest` and `size`.

    Raises:
        JobRejected: the project cannot be installed beside Weir, or its package cannot be described.
    """
    if not (project / "pyproject.toml").is_file():
        raise JobRejected("bad-package", "project", f"{project} has no pyproject.toml")
    with tempfile.TemporaryDirectory(prefix="weir-package-") as scratch:
        folder = _install(project.absolute(), Path(scratch))
        (folder / PACKAGE_VERSIONS_FILE).write_text(json.dumps(installed_versions(), sort_keys=True) + "\n")
        data, digest = write_archive(folder)
        return data, {"digest": digest, "size": len(data), **_describe(folder)}


def _install(project: Path, scratch: Path) -> Path:
    """Installs a copy of the project, since a build writes into its folder. Returns the folder of the modules."""
    if find_spec("pip") is None:
        raise JobRejected("bad-environment", "pip", f"pip is not installed: {sys.executable} -m ensurepip")
    copy, environment = scratch / "project", scratch / "environment"
    shutil.copytree(project, copy, symlinks=True, ignore=lambda place, names: _ignored(Path(place) == project, names))
    venv.EnvBuilder(with_pip=False, symlinks=True).create(environment)
    places = {"base": str(environment), "platbase": str(environment)}
    modules = Path(sysconfig.get_path("purelib", "venv", places))
    base = base_versions()
    stubs = [_write_metadata(modules, name) for name in base]
    constraints = scratch / "constraints.txt"
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in base.items()))
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", *_PIP_OPTIONS]
    process = subprocess.run(
        [*pip, "-c", str(constraints), str(copy)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if process.returncode:
        raise JobRejected("package-conflict", "project", _error_of(process.stdout))
    for stub in stubs:
        shutil.rmtree(stub)
    for place in modules.glob("*.dist-info"):
        for name in _FILES_OF_PIP:
            (place / name).unlink(missing_ok=True)
    return modules


def _error_of(output: str) -> str:
    """The first error that pip printed, with all lines behind it but its advice."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    first = next((number for number, line in enumerate(lines) if line.lstrip().lower().startswith("error")), 0)
    return "\n".join(line for line in lines[first:] if not line.startswith(_ADVICE))


def _ignored(is_top: bool, names: Iterable[str]) -> set[str]:
    return {
        name
        for name in names
        if name == "__pycache__" or fnmatch.fnmatch(name, "*.egg-info") or (is_top and name in _BUILT)
    }


def _write_metadata(modules: Path, name: str) -> Path:
    """Makes pip find a distribution of the base, without its files."""
    distribution = metadata.distribution(name)
    folder = modules / f"{distribution.name.replace('-', '_')}-{distribution.version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(distribution.read_text("METADATA") or "")
    return folder


def _describe(folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "spark_jobs", "describe", str(folder)]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=DESCRIBE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        detail = f"its description took longer than {DESCRIBE_TIMEOUT_S:.0f} s"
        raise JobRejected("broken-package", "package", detail) from error
    try:
        answer: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    except (IndexError, ValueError) as error:
        raise JobRejected("broken-package", "package", f"it cannot be described:\n{process.stderr[-4000:]}") from error
    if refusal := answer.get("error"):
        raise JobRejected(refusal["code"], refusal["field"], refusal["detail"])
    return answer


COMMANDS: Final = (package,)
