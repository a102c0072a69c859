"""The kernels are compiled once per machine, into a folder of the user; a host that cannot compile them is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.kernels.loading import CACHE_FOLDER

#: Prints whether a key is hashed by compiled kernels, or why not.
PROGRAM = """
import pyarrow as pa
from runtime.errors import EnvironmentFailure
from runtime.state.index.hashing import hash_column
try:
    print(len(hash_column(pa.array(["a"]))) == 1)
except EnvironmentFailure as error:
    print(error)
"""
#: Compiles the smallest module only: all of them take 12 s of processor time.
LOADS_HASHES = f"""
from collections import namedtuple
import runtime.kernels.loading as loading
loading.Kernels = namedtuple("Kernels", ["hashes"])
{PROGRAM}
"""
ROOT = Path(__file__).parent.parent.parent


def start(program: str = PROGRAM, **variables: str) -> subprocess.Popen[str]:
    """A process that prints the result last."""
    command = [sys.executable, "-c", program]
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def last_line(process: subprocess.Popen[str]) -> str:
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return printed.splitlines()[-1]


REFUSAL = "cannot compile the kernels that jobs need: "


def test_without_numba_a_host_is_refused() -> None:
    assert f"{REFUSAL}numba cannot be imported" in last_line(start(f"import sys; sys.modules['numba'] = None{PROGRAM}"))


def test_a_numba_that_compiles_nothing_is_refused() -> None:
    """With this variable, which debuggers and measurements of coverage need, kernels would run as Python and fail."""
    assert f"{REFUSAL}NUMBA_DISABLE_JIT is set" in last_line(start(NUMBA_DISABLE_JIT="1"))


def test_an_import_of_the_package_of_authors_compiles_nothing() -> None:
    program = "import sys, weir; [getattr(weir, name) for name in weir.__all__]; print('numba' in sys.modules)"
    assert last_line(start(program)) == "False"


@pytest.mark.slow
def test_processes_that_compile_at_once_share_a_folder_and_a_broken_cache_is_replaced(tmp_path: Path) -> None:
    folder = {CACHE_FOLDER: str(tmp_path / "cache")}
    assert [last_line(each) for each in [start(LOADS_HASHES, **folder), start(LOADS_HASHES, **folder)]] == [
        "True",
        "True",
    ]
    for index in (tmp_path / "cache").rglob("*.nbi"):
        index.write_bytes(b"not an index")
    assert last_line(start(LOADS_HASHES, **folder)) == "True"
    assert b"not an index" not in {index.read_bytes() for index in (tmp_path / "cache").rglob("*.nbi")}


@pytest.mark.slow
def test_a_compilation_is_announced_and_a_load_from_the_cache_is_not(tmp_path: Path) -> None:
    loads = [start(LOADS_HASHES, **{CACHE_FOLDER: str(tmp_path / "cache")}).communicate(timeout=120)[1] for _ in "12"]
    assert ["compiling the kernels, once on this machine" in errors for errors in loads] == [True, False]


def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    """A cache holds machine code: whoever writes it controls the process."""
    tmp_path.chmod(0o777)
    refusal = last_line(start(**{CACHE_FOLDER: str(tmp_path)}))
    assert f"{REFUSAL}no cache folder is private to this user: set {CACHE_FOLDER}" in refusal
    assert not list(tmp_path.rglob("*.nbi"))


def test_a_home_that_cannot_be_written_leaves_the_folder_of_temporary_files(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    variables = {"HOME": str(blocked), "XDG_CACHE_HOME": "", "TMPDIR": str(tmp_path)}
    assert last_line(start(LOADS_HASHES, **variables)) == "True"
    assert list(tmp_path.rglob("*.nbi"))
