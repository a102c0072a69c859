"""W11: the job that is hurt, what is read from logs and rows, and that wrong output is seen."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.recovery import partial
from benchmarks.recovery.job import HURRY, PIPELINE, RAISE, RAISED, RecoveryParams
from benchmarks.recovery.measure import report, wrong
from benchmarks.recovery.place import own_environment
from benchmarks.recovery.watch import Recovery, is_in_pace, log_moments, records
from runtime.core.job.lifecycle import RunState
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.dataflow.pipelines import PipelineContext
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.local import local_master
from tests.waiting import until


def params(folder: Path, rows: int = 3_000, rows_per_second: int = 1_000) -> RecoveryParams:
    for name in ("out", "orders"):
        (folder / name).mkdir()
    return RecoveryParams(
        output_dir=str(folder / "out"),
        orders_dir=str(folder / "orders"),
        keys=100,
        rows=rows,
        rows_per_second=rows_per_second,
        began_ms=int(time.time() * 1000),
    )


def test_the_job_keeps_its_pace_raises_when_told_and_ends_exactly(tmp_path: Path) -> None:
    job_params = params(tmp_path, rows=1_000_000)
    records = MemoryRunStore()
    job = PIPELINE.build(job_params, PipelineContext("")).compile(2)
    settings = CoordinatorSettings(interval_ms=100, min_pause_ms=10)
    master = local_master(job, str(tmp_path / "s"), records, settings, FixedDelay(delay_ms=10))
    running = Thread(target=master.run, daemon=True)
    running.start()
    orders = Path(job_params.orders_dir)
    until(lambda: records.completed)
    (orders / RAISE).touch()
    until(lambda: records.token == 2)
    assert (orders / RAISED).exists()
    assert "as ordered" in records.attempts[0][2]
    until(lambda: any(completed.manifest.token == 2 for completed in records.completed))
    assert not records.state.is_terminal, "a million rows at once: it keeps no pace"
    (orders / HURRY).touch()
    running.join(60)
    assert records.state is RunState.FINISHED
    assert wrong(job_params) == ()


def test_a_lost_and_a_repeated_update_are_seen(tmp_path: Path) -> None:
    job_params = params(tmp_path, rows=200)
    keys = [n * 2_654_435_761 % 100 for n in range(200)]
    first = {key: n for n, key in reversed(list(enumerate(keys)))}
    rows = [
        {"key": key, "count": 1 + (n >= 100), "sum": n + first[key] * (n >= 100), "first": first[key], "last": n}
        for n, key in enumerate(keys)
    ]
    part = Path(job_params.output_dir, "part-1-1-out-0-1-1.parquet")
    pq.write_table(pa.Table.from_pylist(rows), part)
    assert wrong(job_params) == ()
    pq.write_table(pa.Table.from_pylist([*rows, rows[-1]]), part)
    assert wrong(job_params) == ("1 updates were written twice",)
    pq.write_table(pa.Table.from_pylist(rows[:-1]), part)
    assert len(wrong(job_params)) == 1
    assert wrong(job_params)[0].endswith("keys have a wrong last update")


def test_phases_are_read_from_log_lines_after_the_fault(tmp_path: Path) -> None:
    def line(event: str, at: float) -> str:
        return json.dumps({"event": event, "timestamp": datetime.fromtimestamp(at, UTC).isoformat()})

    log = tmp_path / "run-1.log"
    log.write_text("26/11/21 WARN of the JVM\n" + line("restoring", 90) + "\n")
    start = log.stat().st_size
    after = [line("restoring", 99), "at java.lang.Thread", line("attempt fails", 100.5), line("restoring", 102)]
    with log.open("a") as sink:
        sink.write("\n".join([*after, line("restoring", 103), line("something else", 104)]) + "\n")
    assert log_moments({log: start}, 100.0) == {"noticed": 0.5, "restoring": 2.0}


def test_a_report_counts_only_when_it_is_new_and_near_the_pace(tmp_path: Path) -> None:
    job_params = params(tmp_path)
    now = datetime.now(UTC)

    def row(behind: int) -> dict[str, object]:
        watermark = job_params.due(now.timestamp() * 1000) - behind
        return {"live": {"operators": {"numbers": {"watermark": watermark}}}, "live_at": now}

    assert is_in_pace(row(1_000), job_params)
    assert not is_in_pace(row(3_000), job_params)
    assert not is_in_pace(row(0), job_params, since=now.timestamp() + 1)
    assert not is_in_pace({"live": None, "live_at": None}, job_params)


def test_figures_are_medians_with_their_targets() -> None:
    seconds = ((0.1, 4.0), (0.2, 13.0), (0.3, 14.0))
    recoveries = [Recovery(fault="slot killed", seconds={"noticed": a, "committed": b}) for a, b in seconds]
    recoveries += [Recovery(fault=name, seconds={"committed": 2.0}) for name in ("exception", "master killed")]
    figures = {figure.name: figure for figure in report(recoveries, 10_000_000, ()).figures}
    assert (figures["slot killed, noticed"].value, figures["slot killed, noticed"].is_met) == (0.2, True)
    assert (figures["slot killed, next committed output"].value) == 13.0
    assert figures["slot killed, next committed output"].is_met is False
    assert figures["exception, next committed output"].is_met is True
    assert figures["job master killed, next committed output"].is_met is None


def test_lines_that_two_processes_wrote_at_once_are_told_apart() -> None:
    text = 'WARN of the JVM {x}\n{"event": "a"}{"event": "b", "deep": {"c": 1}}\n\n{"event": "cut'
    assert [record["event"] for record in records(text)] == ["a", "b"]


def test_a_stack_that_somebody_else_runs_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its port the stack of the benchmark would not start, with its database it would hurt their jobs."""
    names = ("DATABASE_URL", "CELERY_BROKER_URL", "SPARK_MASTER", "WEIR_HTTP_PORT", "WEIR_VAR", "WEIR_RESTART_DELAY_S")
    for name in names:
        monkeypatch.setenv(name, "theirs")
    assert "theirs" not in own_environment().values()
    assert "PATH" in own_environment()


@pytest.mark.parametrize("keeps_state", [True, False])
def test_recovery_in_part_is_measured_beside_full_recovery(
    keeps_state: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial, "STATE_BYTES", {"small": 48_000})
    monkeypatch.setattr(partial, "PATIENCE_S", 60.0)
    case = partial.Case(size="small", keeps_state=keeps_state)
    assert partial.measure(case, tmp_path, rounds=1) == ()
    assert case.kept_slots == [3 * keeps_state]
    assert len(case.delays_s) == len(case.delayed_rows) == 1
