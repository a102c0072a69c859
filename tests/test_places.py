"""Where tests lie: in the folder of the modules that they test, or apart (`tests/README.md`)."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
APART = {"jobs", "contracts", "acceptance", "golden"}  #: everything together
FOLDERS = sorted({path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py") if path.parent != TESTS})


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_the_folder_of_a_test_is_a_folder_of_the_product_or_stands_apart(folder: Path) -> None:
    assert folder.parts[0] in APART or (ROOT / "runtime" / folder).is_dir() or (ROOT / folder).is_dir()
