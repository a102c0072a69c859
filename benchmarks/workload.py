"""What a workload is: data, parameters, the answer that is right, and how many rows each system gets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.protocol import Task

#: Row `id` has event time `id` microseconds; these are the keys, as SQL over `id` (DuckDB, Spark and Flink agree).
EVEN_KEY = "(id * 2654435761) % {keys}"
SKEWED_KEY = (
    "least(cast(floor(power(1.0e0 - (((id * 2654435761) % 4294967296) + 0.5e0) / 4294967296.0e0"
    " * (1.0e0 - {lowest!r}e0), {exponent!r}e0)) as bigint), {keys}) - 1"
)  # constants are numbers: Flink's planner fails at a power whose exponent is an expression


#: Every tenth row lies up to two event seconds behind the rows around it, if the rows of a workload are out of order.
DISORDER_MS = 2_000
DISORDERED_MICROSECONDS = "greatest(id - case when id % 10 = 0 then (id * 7919) % 1999000 else 0 end, 0)"


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
        target: the least ratio to the best peer; None: the ratio is told as it is.
        totals: what a sink that counts must have counted of so many rows; None: there is no closed form.
        window_s, slide_s: of windows, how long they are, and how long after one the next begins.
        files: format of the files that the rows are in ("parquet", "json"), the same for all systems, of which each
            gets the first; output then goes to files in the measured run too, and that is compared as well. None: an
            engine makes rows.
        check_us_per_row: event time between two rows of the small run, so that it has whole windows of long ones.
        text_keys: keys are uuids as text, 36 characters, instead of integers; only in files.
        disorder_ms: how far a row's event time may lie behind that of a row before it; only in files.
        absent: by system, why it cannot take part although one might expect it to.
        beside: another workload, and the least ratio of Weir's rate here to its rate there.
    """

    name: str
    title: str
    kind: str
    keys: int
    rows: Mapping[str, int]
    found: str
    expected: str
    target: float | None
    zipf: float | None = None
    window_s: int = 1
    slide_s: int = 1
    check_rows: int = 6_000_000
    unit: str = "rec/s"
    totals: Callable[[int], Mapping[str, int]] | None = None
    beside: tuple[str, float] | None = None
    files: str | None = None
    check_us_per_row: int = 1
    text_keys: bool = False
    disorder_ms: int = 0
    absent: Mapping[str, str] = field(default_factory=dict)

    def miscounted(self, rows: int, details: Mapping[str, int]) -> list[str] | None:
        """What the sink of a run counted otherwise than it must; None where nothing was counted or is known."""
        if self.totals is None or "rows_out" not in details:
            return None
        right = self.totals(rows)
        return [
            f"{name} {details.get(name)}, not {value}" for name, value in right.items() if details.get(name) != value
        ]

    def task(self, system: str, folder: str, share: float = 1.0, inputs: str = "") -> Task:
        """What `system` is to do, with that share of its rows. `inputs`: the folder of the files, if it reads files."""
        return Task(
            workload=self.name,
            kind=self.kind,
            rows=round(self.rows[system] * share),
            check_rows=self.check_rows,
            keys=self.keys,
            zipf=self.zipf,
            folder=folder,
            window_s=self.window_s,
            slide_s=self.slide_s,
            files=self.files,
            inputs=inputs,
            check_us_per_row=self.check_us_per_row,
            text_keys=self.text_keys,
            disorder_ms=self.disorder_ms,
        )


def microseconds_sql(workload: Workload) -> str:
    """The event time of a row of the small run, as SQL over `id` for DuckDB."""
    return DISORDERED_MICROSECONDS if workload.disorder_ms else f"id * {workload.check_us_per_row}"


def key_sql(task: Task | Workload) -> str:
    """The key of a row, as SQL over `id`; of a text key, for DuckDB."""
    if task.text_keys:
        number = EVEN_KEY.format(keys=task.keys)
        return f"cast(cast(md5(cast({number} as varchar)) as uuid) as varchar)"
    if task.zipf is None:
        return EVEN_KEY.format(keys=task.keys)
    power = 1.0 - task.zipf
    return SKEWED_KEY.format(keys=task.keys, lowest=(task.keys + 1.0) ** power, exponent=1.0 / power)
