"""W6: a Python function called per row, with one value of state per key: the running total of the key's numbers."""

from typing import Final

from benchmarks.workload import Workload

KIND: Final = "function"

W6 = Workload(
    name="W6",
    title="row-wise Python keyed function with value state, 1,000 keys",
    kind=KIND,
    keys=1_000,
    rows={"weir": 2_000_000, "bytewax": 2_000_000, "pyflink": 200_000},
    found="select key, count(*), max(total) from found group by key",
    expected="select key, count(*), sum(id) from sequence group by key",
    target=3,
    check_rows=200_000,
)
