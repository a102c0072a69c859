"""A loop whose data stay in the cache of a core: `python -m benchmarks.resident LOOPS`.

It uses neither memory nor disk, so two such processes show what the second core of a machine can give at most.
"""

import sys
import time
from typing import Final

import numpy as np

from benchmarks.kernels import READY_LINE, write_line

_VALUES: Final = 2_048  #: of 8 bytes: half of a first-level data cache of 32 KB
_PASSES: Final = 100  #: per loop


def spin(loops: int) -> int:
    """Mixes the values again and again. Returns a number that depends on every pass."""
    values = np.arange(_VALUES, dtype=np.uint64)
    for _ in range(loops * _PASSES):
        values *= np.uint64(6_364_136_223_846_793_005)
        values += np.uint64(1_442_695_040_888_963_407)
    return int(values.sum())


def main() -> None:
    loops = int(sys.argv[1])
    spin(10)
    write_line(READY_LINE)
    sys.stdin.readline()
    began, worked = time.perf_counter(), time.process_time()
    spin(loops)
    write_line(f"{time.perf_counter() - began} {time.process_time() - worked}")


if __name__ == "__main__":
    main()
