"""Runs the job, injects faults in turns, lets the job finish, and compares its output with the answer."""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.answers import compare, count
from benchmarks.figures import Figure, MeasurementPlan, Report
from benchmarks.recovery.faults import FAULTS
from benchmarks.recovery.job import HURRY, RecoveryParams
from benchmarks.recovery.place import PATIENCE_S, Run, stack, start, wait_for
from benchmarks.recovery.watch import Recovery, Watch, steady_state_check
from benchmarks.sql import listing
from benchmarks.workload import EVEN_KEY

TITLE: Final = "recovery with 100 MB of state, 1 s checkpoints"
TIME_BOX_S: Final = 900.0
STEP_S: Final = 28.0

ROUNDS: Final = 5
INTERVAL_MS: Final = 1_000
PARALLELISM: Final = 2
#: The first row of each key makes the state: 48 bytes in columns, so 120 MB. Later rows change a small part of it.
KEYS: Final = 2_500_000
BYTES_PER_KEY: Final = 48
ROWS_PER_SECOND: Final = 20_000
PACED_S: Final = 800  #: duration of the paced input
SETTLE_CHECKPOINTS: Final = 3
NOT_COMPARED: Final = "the output was not compared: the job did not finish"

#: (name, fault, awaited moment, target in seconds)
_FIGURES: Final = (
    ("slot killed, noticed", "slot killed", "noticed", 1.0),
    ("slot killed, next committed output", "slot killed", "committed", 12.0),
    ("exception, next committed output", "exception", "committed", 3.0),
    ("job master killed, next committed output", "master killed", "committed", None),
)
#: Counts only rise, so the newest update of a key has the largest count.
_LAST: Final = """
    select key, max(count) as count, max(sum) as sum, min(first) as first, max(last) as last from found group by key
"""
_EXPECTED: Final = """
    select key, count(*) as count, sum(id)::bigint as sum, min(id) as first, max(id) as last from rows group by key
"""


def steps(plan: MeasurementPlan) -> int:
    return (plan.rounds or ROUNDS) * len(FAULTS) + 1


def run(plan: MeasurementPlan) -> Report:
    """Runs the measurement, for some minutes; most of the time is spent waiting for a steady job between faults."""
    params = _params(plan.folder)
    recoveries: list[Recovery] = []
    with stack(plan.folder / "stack"):
        job = start(plan.folder / "stack", params, PARALLELISM, INTERVAL_MS)
        is_settled = steady_state_check(job, params, SETTLE_CHECKPOINTS)
        for turn in range(plan.rounds or ROUNDS):
            recoveries += _hurt(turn, job, params, plan, is_settled)
            stored_bytes = int(job.checkpoints(job.row()["token"])[-1]["size_bytes"])
            plan.report_partial(report(recoveries, stored_bytes, (NOT_COMPARED,)))
        _let_it_end(job, params)
    plan.step("the answer")
    return report(recoveries, stored_bytes, wrong(params))


def _params(folder: Path) -> RecoveryParams:
    output, orders = folder / "out", folder / "orders"
    for each in (output, orders):
        each.mkdir()
    return RecoveryParams(
        output_dir=str(output),
        orders_dir=str(orders),
        keys=KEYS,
        rows=KEYS + ROWS_PER_SECOND * PACED_S,
        rows_per_second=ROWS_PER_SECOND,
        began_ms=int(time.time() * 1000) + 30_000,  # after the start of the stack
    )


def _hurt(
    turn: int, job: Run, params: RecoveryParams, plan: MeasurementPlan, is_settled: Callable[[], bool]
) -> Iterator[Recovery]:
    """Injects each fault once, at a random moment between two checkpoints of a job that runs steadily."""
    for name, fault in FAULTS.items():
        wait_for("a steady job", is_settled)
        time.sleep(random.random() * INTERVAL_MS / 1000)  # noqa: S311 - not used for secrets
        watch = Watch(job, params)
        yield watch.wait_for_recovery(name, fault(job, params))
        plan.step(f"{name}, round {turn + 1}")


def _let_it_end(job: Run, params: RecoveryParams) -> None:
    """Releases the remaining rows at full speed, so that the job ends with a known answer."""
    Path(params.orders_dir, HURRY).touch()
    wait_for("the end", lambda: job.row()["state"] in ("finished", "failed"), PATIENCE_S)
    row = job.row()
    if row["state"] != "finished":
        raise RuntimeError(f"the run is {row['state']}: {row['failure']}")


def wrong(params: RecoveryParams) -> tuple[str, ...]:
    """Errors in the committed files. Counts only rise, so a second row with the same count is a repetition."""
    source = f"from read_parquet({listing([f'{params.output_dir}/part-*.parquet'])})"
    rows = f"select id, {EVEN_KEY.format(keys=params.keys)} as key from range({params.rows}) as t(id)"
    apart, _ = compare(_LAST, _EXPECTED, {"found": source, "rows": rows})
    (repeated,) = count(f"select count(*) - count(distinct (key, count)) {source}")
    texts = ((apart, "keys have a wrong last update"), (repeated, "updates were written twice"))
    return tuple(f"{number} {text}" for number, text in texts if number)


# ---------------------------------------------------------------- report


def report(recoveries: Sequence[Recovery], stored_bytes: int, wrong: tuple[str, ...]) -> Report:
    by_fault = {name: [r for r in recoveries if r.fault == name] for name in FAULTS}
    return Report(
        figures=tuple(_figure(name, by_fault[fault], what, target) for name, fault, what, target in _FIGURES),
        lines=(
            f"state: {KEYS * BYTES_PER_KEY / 1e6:.0f} MB in columns, {stored_bytes / 1e6:.0f} MB stored",
            *(f"{name}: {_phases(recoveries)}" for name, recoveries in by_fault.items()),
        ),
        wrong=wrong,
        details={"runs": [{"fault": recovery.fault, **recovery.seconds} for recovery in recoveries]},
    )


def _figure(name: str, recoveries: Sequence[Recovery], what: str, target: float | None) -> Figure:
    runs = tuple(recovery.seconds[what] for recovery in recoveries)
    return Figure(name=name, value=statistics.median(runs), unit="s", at_most=target, runs=runs)


def _phases(recoveries: Sequence[Recovery]) -> str:
    """Median and maximum seconds after the fault for each moment, in order of time."""
    names = dict.fromkeys(name for recovery in recoveries for name in recovery.seconds)
    table = {name: [r.seconds[name] for r in recoveries if name in r.seconds] for name in names}
    rows = sorted((statistics.median(seconds), max(seconds), name) for name, seconds in table.items())
    return ", ".join(f"{name} {median:.2f} (at most {longest:.2f})" for median, longest, name in rows)
