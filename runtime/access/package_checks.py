"""Checks that a process imports exactly the code of a package: nothing hides it, and it hides nothing of Weir.

A module that is imported already stays. A folder without `__init__.py` is part of a namespace package, which a regular
package elsewhere on the path replaces. Either would run other code than that of the package, without an error.
"""

import sys
from collections.abc import Iterable
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, PathFinder
from importlib.metadata import PackageNotFoundError, distribution, distributions, packages_distributions
from pathlib import Path, PurePath
from types import ModuleType
from typing import Final

import msgspec
from packaging.utils import canonicalize_name

from runtime.errors import JobRejected
from runtime.libraries import PACKAGE_VERSIONS_FILE, base_versions, installed_versions

_MODULE_SUFFIXES: Final = tuple(SOURCE_SUFFIXES + EXTENSION_SUFFIXES)


def check_package(folder: Path) -> set[str]:
    """The names of the modules of a package.

    Called before the folder is on the path. Reads the metadata of what is installed only for names that are equal.

    Raises:
        JobRejected: the package fits another deployment, or has modules of Python, Weir or its libraries.
    """
    _check_versions(folder)
    _check_distributions(folder)
    modules = _modules_below(folder)
    _check_names(modules)
    _check_imported(modules)
    return modules


def check_resolution(folder: Path, modules: set[str]) -> None:
    """Raises JobRejected unless the tops of `modules` are imported from `folder`, which is on the path."""
    for name in sorted(_top_names(modules)):
        spec = PathFinder.find_spec(name)
        places = [spec.origin] if spec and spec.origin else list(spec.submodule_search_locations or ()) if spec else []
        if not places or not Path(places[0]).is_relative_to(folder):
            _refuse(f"its module {name} is imported from {places[0] if places else 'nowhere'}: add an __init__.py")


def package_distributions(folder: Path) -> dict[str, str]:
    """The versions of the distributions in a package, by name."""
    return {canonicalize_name(each.name): each.version for each in distributions(path=[str(folder)])}


def _check_versions(folder: Path) -> None:
    try:
        versions = msgspec.json.decode((folder / PACKAGE_VERSIONS_FILE).read_bytes(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError) as error:
        raise JobRejected("bad-package", "package", "`weir package` has not made it") from error
    for name, version in installed_versions().items():
        if versions.get(name) != version:
            _refuse(f"it was built for {name} {versions.get(name)}, and {name} {version} runs here: build it anew")


def _check_distributions(folder: Path) -> None:
    """A distribution of the base would be there twice, and a process would import either."""
    brought = package_distributions(folder)
    base = base_versions() if any(map(_is_installed, brought)) else {}
    for name in sorted(brought.keys() & base.keys()):
        _refuse(f"it brings {name} {brought[name]}, and {name} {base[name]} is installed with Weir: build it anew")


def _is_installed(name: str) -> bool:
    try:
        return bool(distribution(name))
    except PackageNotFoundError:
        return False


def _check_names(modules: set[str]) -> None:
    names = _top_names(modules)
    if taken := names & sys.stdlib_module_names:
        _refuse_name(min(taken))
    elsewhere = {name for name in names if any(finder.find_spec(name, None) for finder in sys.meta_path)}
    if elsewhere and (taken := modules & _base_modules(elsewhere)):
        _refuse_name(min(taken))


def _base_modules(names: set[str]) -> set[str]:
    """The modules of Weir and its libraries below `names`. An editable installation lists only the tops of its own."""
    base, owners = base_versions(), packages_distributions()
    modules = set[str]()
    for name in names:
        for owner in owners.get(name, ()):
            if canonicalize_name(owner) in base:
                files = _modules_of(distribution(owner).files or ())
                below = {module for module in files if module.partition(".")[0] == name}
                modules |= below or {name}
    return modules


def _check_imported(modules: set[str]) -> None:
    """A module at the top of the package may be a namespace that is imported already: its places follow the path."""
    for name in sorted(modules | _top_names(modules)):
        module = sys.modules.get(name)
        if module is not None and (name in modules or not _is_namespace(module)):
            place = getattr(module, "__file__", None) or "another place"
            _refuse(f"its module {name} is imported in this process already, from {place}: rename it")


def _is_namespace(module: ModuleType) -> bool:
    return getattr(module, "__file__", None) is None and hasattr(module, "__path__")


def _modules_below(folder: Path) -> set[str]:
    return _modules_of(path.relative_to(folder) for path in folder.rglob("*") if path.suffix in (".py", ".so"))


def _modules_of(files: Iterable[PurePath]) -> set[str]:
    """The dotted names of the modules that the files are, without those that no statement can import."""
    names = set[str]()
    for file in files:
        if file.name.endswith(_MODULE_SUFFIXES):
            parts = (*file.parts[:-1], *file.name.partition(".")[:1])
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            if parts and parts != ("__main__",) and all(part.isidentifier() for part in parts):
                names.add(".".join(parts))
    return names


def _top_names(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def _refuse_name(name: str) -> None:
    _refuse(f"its module {name} has the name of a module of Python, Weir or its libraries: rename it")


def _refuse(detail: str) -> None:
    raise JobRejected("package-conflict", "package", detail)
