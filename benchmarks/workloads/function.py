"""W6: a Python function called per row, with a value state per key: the running total of the key's numbers."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from benchmarks.workload import Workload
from runtime.connectors.sources.sequence import KEY_MULTIPLIER

KEYS: Final = 1_000


def totals(rows: int) -> Mapping[str, int]:
    """The output totals: a row per input row. The sum of the totals is left out: it depends on the order of rows."""
    full, remainder = divmod(rows, KEYS)
    last = (np.arange(remainder) + full * KEYS) * KEY_MULTIPLIER % KEYS
    return {"rows_out": rows, "sum_of_key": full * KEYS * (KEYS - 1) // 2 + int(last.sum())}


W6 = Workload(
    name="W6",
    title="row-wise Python keyed function with value state, 1,000 keys",
    kind="function",
    keys=KEYS,
    rows={"weir": 12_000_000, "bytewax": 4_000_000, "pyflink": 200_000},
    found="select key, count(*), max(total) from found group by key",
    expected="select key, count(*), sum(id) from sequence group by key",
    target=3,
    check_rows=100_000,
    totals=totals,
)
