"""Kernels are compiled once, and again after a change of them or of the packages."""

import sys
from pathlib import Path

import pytest

from stack.launch import kernels


@pytest.mark.parametrize("ends", ["", "raise SystemExit(1)"])
def test_kernels_are_compiled_again_after_a_change(tmp_path: Path, ends: str) -> None:
    """A compilation that fails is not tried at each set-up."""
    folder, venv = tmp_path / "runtime" / "kernels", tmp_path / ".venv"
    folder.mkdir(parents=True)
    (folder / "__main__.py").write_text(f"open('runs', 'a').write('x')\n{ends}\n")
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    (venv / "weir-stamp").write_text("1")
    for change in (
        lambda: None,
        lambda: (folder / "new.py").write_text("1"),
        lambda: (venv / "weir-stamp").write_text("2"),
    ):
        change()
        assert not kernels.is_current(str(tmp_path))
        kernels.compile_kernels(str(tmp_path))
        assert kernels.is_current(str(tmp_path))
    assert (tmp_path / "runs").read_text() == "xxx"
