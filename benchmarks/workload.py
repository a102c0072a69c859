"""The definition of a workload: data, parameters, the correct answer, and the number of rows per system."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

from benchmarks.protocol import Computation, Task

#: Row `id` has event time `id` microseconds. Keys are SQL over `id` on which DuckDB, Spark and Flink agree.
EVEN_KEY = "(id * 2654435761) % {keys}"
#: In workloads out of order, every tenth row lags up to two event seconds behind the rows around it.
DISORDER_MS = 2_000
DISORDERED_MICROSECONDS = "greatest(id - case when id % 10 = 0 then (id * 7919) % 1999000 else 0 end, 0)"


@dataclass(frozen=True, kw_only=True)
class Workload(Computation):
    """A workload: its data, its query, the correct answer, and the systems that take part.

    Args:
        name: name in the tables of results and in latest.json.
        rows: by system, the number of rows of the measured run, for about ten seconds on two cores. A system that is
            not listed does not take part.
        found: SQL over the view `found`, a system's output; its result must equal that of `expected`.
        expected: SQL over the view `sequence` (id, key), the input; with a data set, over its tables. Without output,
            both are empty.
        target: the minimum ratio to the best peer; None: the ratio is reported without a target.
        totals: the expected totals of a counting sink for a number of rows; None: there is no closed form.
        batch: with a data set, SQL for the rows that a batch computes; empty: `expected`.
        output: with a data set, the columns of the output, name -> SQL type.
        late: SQL over the rows of the tables that are too late, and over tables without such rows. Its result is the
            number of rows to drop; empty: a job drops no rows.
        late_is_bound: fewer rows may be dropped: rows of a table are in time while another table trails, and match
            no row.
        group: name of the workloads whose ratios to the best peer have a geometric mean in the table; empty: none.
        rounds: number of runs of each system; None: that of the benchmark.
        absent: by system, the reason why it cannot take part although a reader might expect it to.
    """

    name: str
    title: str
    rows: Mapping[str, int]
    found: str
    expected: str
    target: float | None
    unit: str = "rec/s"
    totals: Callable[[int], Mapping[str, int]] | None = None
    batch: str = ""
    output: Mapping[str, str] = field(default_factory=dict)
    late: str = ""
    late_is_bound: bool = False
    group: str = ""
    rounds: int | None = None
    absent: Mapping[str, str] = field(default_factory=dict)

    @property
    def can_be_killed(self) -> bool:
        """Whether a run may be killed and go on from its checkpoint: its output lasts."""
        return self.dataset is not None and self.sink != "discard"

    def count_errors(self, rows: int, details: Mapping[str, int]) -> list[str] | None:
        """Differences between the totals of a run's sink and the expected totals; None if either is unknown."""
        if self.totals is None or "rows_out" not in details:
            return None
        return count_errors(details, self.totals(rows))

    def task(self, system: str, folder: str, share: float = 1.0, inputs: str = "") -> Task:
        """The task for `system`, with a share of its rows. `inputs`: folder of the input files, if it reads files."""
        shared = {each.name: getattr(self, each.name) for each in fields(Computation)}
        rows = round(self.rows[system] * share)
        return Task(**shared, workload=self.name, rows=rows, folder=folder, inputs=inputs)


def count_errors(totals: Mapping[str, int], right: Mapping[str, int]) -> list[str]:
    """A text for each total of a sink that differs from the expected total."""
    return [f"{name} is {totals.get(name)}, not {value}" for name, value in right.items() if totals.get(name) != value]


def microseconds_sql(workload: Computation) -> str:
    """The event time of a row of the small run in microseconds, as SQL over `id` for DuckDB."""
    return DISORDERED_MICROSECONDS if workload.disorder_ms else "id"


def key_sql(task: Computation) -> str:
    """The key of a row, as SQL over `id`; text keys for DuckDB only."""
    if task.text_keys:
        number = EVEN_KEY.format(keys=task.keys)
        return f"cast(cast(md5(cast({number} as varchar)) as uuid) as varchar)"
    return EVEN_KEY.format(keys=task.keys)
