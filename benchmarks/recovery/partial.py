"""W11-part: recovery in part beside full recovery, of a local job whose slots are threads.

Both cases run the job of W11. In one its step is declared `repeatable`, so that the totals of three slots of four keep
their state while the sources restart.
"""

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.figures import Figure, MeasurementPlan, Report
from benchmarks.recovery.job import HURRY, RAISE, RAISED, RecoveryParams, build
from benchmarks.recovery.measure import BYTES_PER_KEY, wrong
from benchmarks.recovery.watch import committed_files
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.pipelines import PipelineContext
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.local import local_master

TITLE: Final = "recovery in part beside full recovery, 1 s checkpoints"
TIME_BOX_S: Final = 300.0
STEP_S: Final = 60.0

ROUNDS: Final = 5
SLOTS: Final = 4
STATE_BYTES: Final = {"10 MB": 10_000_000}
ROWS_PER_SECOND: Final = 20_000
INTERVAL_MS: Final = 1_000
RESTART_DELAY_MS: Final = 30
SETTLE_CHECKPOINTS: Final = 3
PACED_S: Final = 120  #: duration of the paced input
PATIENCE_S: Final = 300.0
_POLL_S: Final = 0.005


@dataclass(kw_only=True)
class Case:
    """A run of the job. `delays_s`: by fault, the time until the next committed output."""

    size: str
    keeps_state: bool
    delays_s: list[float] = field(default_factory=list)
    delayed_rows: list[float] = field(default_factory=list)
    kept_slots: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.size}, {'in part' if self.keeps_state else 'full'}"


def cases() -> list[Case]:
    return [Case(size=size, keeps_state=keeps_state) for size in STATE_BYTES for keeps_state in (True, False)]


def steps(plan: MeasurementPlan) -> int:
    return len(cases())


def run(plan: MeasurementPlan) -> Report:
    """Runs each case in turn, with a fault per round."""
    finished, errors = list[Case](), list[str]()
    for case in cases():
        errors += [f"{case.name}: {each}" for each in measure(case, plan.folder / case.name, plan.rounds or ROUNDS)]
        finished.append(case)
        plan.report_partial(report(finished, tuple(errors)))
        plan.step(case.name)
    return report(finished, tuple(errors))


def measure(case: Case, folder: Path, rounds: int) -> tuple[str, ...]:
    """Returns the errors in the output."""
    params = _params(folder, STATE_BYTES[case.size] // BYTES_PER_KEY, keeps_state=case.keeps_state)
    records = MemoryRunStore()
    job = build(params, PipelineContext("")).compile(SLOTS)
    settings = CoordinatorSettings(interval_ms=INTERVAL_MS)
    restart = FixedDelay(attempts=rounds + 1, delay_ms=RESTART_DELAY_MS)
    master = local_master(job, str(folder / "state"), records, settings, restart)
    thread = threading.Thread(target=master.run, daemon=True)
    thread.start()
    for _ in range(rounds):
        _wait_for(lambda: _is_settled(records, params))
        _fail(case, params)
    Path(params.orders_dir, HURRY).touch()
    thread.join(PATIENCE_S)
    case.kept_slots += [len(failure.get("kept_slots", ())) for failure in records.details]
    return wrong(params)


def _params(folder: Path, keys: int, *, keeps_state: bool) -> RecoveryParams:
    output, orders = folder / "out", folder / "orders"
    for each in (output, orders):
        each.mkdir(parents=True)
    return RecoveryParams(
        output_dir=str(output),
        orders_dir=str(orders),
        keys=keys,
        rows=keys + ROWS_PER_SECOND * PACED_S,
        rows_per_second=ROWS_PER_SECOND,
        began_ms=int(time.time() * 1000),
        keeps_state=keeps_state,
    )


def _is_settled(records: MemoryRunStore, params: RecoveryParams) -> bool:
    """Whether the sources keep up with the pace, and the attempt has completed some checkpoints."""
    completed = [each for each in list(records.completed) if each.manifest.token == records.token]
    watermark = records.live.get("operators", {}).get("numbers", {}).get("watermark") or 0
    in_pace = watermark >= params.due(time.time() * 1000) - 2 * ROWS_PER_SECOND
    return len(completed) >= SETTLE_CHECKPOINTS and in_pace


def _fail(case: Case, params: RecoveryParams) -> None:
    """Raises in a subtask, and waits for the next committed output, that of a newer attempt."""
    output = Path(params.output_dir)
    order, raised = (Path(params.orders_dir, name) for name in (RAISE, RAISED))
    raised.unlink(missing_ok=True)
    token, newest = max(committed_files(output))
    last_at = time.time()
    order.touch()
    deadline = time.monotonic() + PATIENCE_S
    while (committed := max(committed_files(output)))[0] == token:
        if committed[1] > newest:
            newest, last_at = committed[1], time.time()
        if time.monotonic() > deadline:
            raise TimeoutError(f"no output of a newer attempt within {PATIENCE_S:g} s")
        time.sleep(_POLL_S)
    now = time.time()
    case.delays_s.append(now - raised.stat().st_ctime)
    late_s = max(0.0, now - last_at - INTERVAL_MS / 1000)
    case.delayed_rows.append(late_s * ROWS_PER_SECOND * (SLOTS - 1) / SLOTS)


def _wait_for(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not check():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE_S:g} s")
        time.sleep(_POLL_S)


def report(finished: list[Case], errors: tuple[str, ...]) -> Report:
    figures = list[Figure]()
    for case in finished:
        delays, rows = tuple(case.delays_s), tuple(case.delayed_rows)
        figures.append(
            Figure(name=f"{case.name}: next committed output", value=statistics.median(delays), unit="s", runs=delays)
        )
        name = f"{case.name}: rows of other keys that were late"
        figures.append(Figure(name=name, value=statistics.median(rows), unit="rows", digits=0, runs=rows))
    lines = tuple(f"{case.name}: slots that were kept, by fault: {case.kept_slots}" for case in finished)
    return Report(figures=tuple(figures), lines=lines, wrong=errors)
