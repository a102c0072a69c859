"""Memory that a slot's process has freed stays with it."""

import subprocess
import sys

import pytest

from runtime.slot import process_tuning

PAGES = """
import resource, numpy as np
from runtime.slot import process_tuning
{first}
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for turn in range(40):
    if turn == 20:
        before = faults()
    columns = [np.ones(65_536) for _ in range(8)]
    del columns
print(faults() - before)
"""


def faults(first: str) -> int:
    """How often twenty batches met a page that the system had to clear."""
    process = subprocess.run(
        [sys.executable, "-c", PAGES.format(first=first)], capture_output=True, text=True, check=True
    )
    return int(process.stdout)


@pytest.mark.skipif(not process_tuning.keep_freed_memory(), reason="another C library")
def test_batches_use_the_pages_of_those_before_them() -> None:
    assert faults("process_tuning.keep_freed_memory()") * 10 < faults("")
