"""The check of folders (`tests.folders`) finds large folders, and exceptions that are no longer needed."""

from pathlib import Path

from tests.folders import MAX_MODULES, faults, folders


def test_modules_are_counted_by_folder_without_packages_and_migrations(tmp_path: Path) -> None:
    for name in ("__init__.py", "a.py", "part/b.py", "part/__init__.py", "migrations/0001_initial.py"):
        file = tmp_path / "console" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert folders(tmp_path) == {"console": 1, "console/part": 1}


def test_a_large_folder_is_named_and_an_exception_only_shrinks() -> None:
    counts = {"console/a": MAX_MODULES, "console/b": MAX_MODULES + 1, "console/c": 30, "console/d": 32, "console/e": 9}
    exceptions = {"console/c": 31, "console/d": 31, "console/e": 21}
    assert list(faults(counts, exceptions)) == [
        "console/b has 21 modules, more than 20: group them",
        "console/d has 32 modules, more than 31: group them",
        "console/c has 30 modules: lower its number to 30 in EXCEPTIONS",
        "console/e has 9 modules: remove it in EXCEPTIONS",
    ]
