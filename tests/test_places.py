"""Where tests lie: at the path of their module, in the folder of its package, or apart (`tests/README.md`)."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
APART = {"jobs", "contracts", "acceptance", "golden"}  #: everything together
PACKAGES = ("runtime", "console", "spark_jobs", "stack", "benchmarks", "examples", "weir")
FILES = sorted(
    path.relative_to(TESTS)
    for path in TESTS.rglob("test_*.py")
    if path.parent != TESTS and path.relative_to(TESTS).parts[0] not in APART
)


def folders_of(name: str) -> set[Path]:
    """The folders with a module of this name, as tests name them."""
    folders = (path.parent.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob(f"{name}.py"))
    return {Path(*folder.parts[1:]) if folder.parts[0] == "runtime" else folder for folder in folders}


@pytest.mark.parametrize("folder", sorted({file.parent for file in FILES}), ids=str)
def test_the_folder_of_a_test_is_a_folder_of_the_product(folder: Path) -> None:
    assert (ROOT / "runtime" / folder).is_dir() or (ROOT / folder).is_dir()


def test_a_test_with_the_name_of_a_module_lies_at_its_path() -> None:
    """A name that only another package has says nothing: `runtime/master/restore.py` has no tests in the console."""
    misplaced = []
    for file in FILES:
        homes = {home for home in folders_of(file.stem.removeprefix("test_")) if home.parts[:1] == file.parts[:1]}
        if homes and not any(home.is_relative_to(file.parent) for home in homes):
            misplaced.append(f"{file} tests a module of {', '.join(map(str, sorted(homes)))}")
    assert misplaced == []
