"""The check of folders (`tests.folders`) finds large folders."""

from pathlib import Path

from tests.folders import MAX_MODULES, faults, folders


def test_modules_are_counted_by_folder_without_packages_and_migrations(tmp_path: Path) -> None:
    for name in ("__init__.py", "a.py", "part/b.py", "part/__init__.py", "migrations/0001_initial.py"):
        file = tmp_path / "console" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert folders(tmp_path) == {"console": 1, "console/part": 1}


def test_a_large_folder_is_named() -> None:
    counts = {"console/a": MAX_MODULES, "console/b": MAX_MODULES + 1}
    assert list(faults(counts)) == ["console/b has 21 modules, more than 20: group them"]
