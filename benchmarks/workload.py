"""What a workload is: data, parameters, the answer that is right, and how many rows each system gets."""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.protocol import Task

#: Row `id` has event time `id` microseconds; these are the keys, as SQL over `id` (DuckDB, Spark and Flink agree).
EVEN_KEY = "(id * 2654435761) % {keys}"
SKEWED_KEY = (
    "least(cast(floor(pow(1.0e0 - (((id * 2654435761) % 4294967296) + 0.5e0) / 4294967296.0e0"
    " * (1.0e0 - pow({keys} + 1.0e0, 1.0e0 - {zipf}e0)), 1.0e0 / (1.0e0 - {zipf}e0))) as bigint), {keys}) - 1"
)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A row of the table.

    Args:
        name: as in the table and in latest.json.
        kind: what is computed; each system implements some kinds.
        rows: by system, how many rows the measured run has: enough for about ten seconds on two cores. A system that
            is not named does not take part.
        found: SQL over the view `found`, a system's output, that gives what `expected` gives.
        expected: SQL over the view `sequence` (id, key), the input.
        target: the least ratio to the best peer.
    """

    name: str
    title: str
    kind: str
    keys: int
    rows: Mapping[str, int]
    found: str
    expected: str
    target: float
    zipf: float | None = None
    check_rows: int = 6_000_000
    unit: str = "rec/s"

    def task(self, system: str, folder: str, share: float = 1.0) -> Task:
        """What `system` is to do, with that share of its rows."""
        return Task(
            workload=self.name,
            kind=self.kind,
            rows=round(self.rows[system] * share),
            check_rows=self.check_rows,
            keys=self.keys,
            zipf=self.zipf,
            folder=folder,
        )


def key_sql(task: Task | Workload) -> str:
    """The key of a row, as SQL over `id`."""
    if task.zipf is None:
        return EVEN_KEY.format(keys=task.keys)
    return SKEWED_KEY.format(keys=task.keys, zipf=task.zipf)
