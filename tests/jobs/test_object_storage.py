"""Jobs whose checkpoints are in a bucket of a real S3 server: failures, restores, retention, faults of the bucket."""

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

import weir
from runtime.core.job.ids import Token
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings
from runtime.io import object_store
from runtime.io.memory.run_store import MemoryRunStore
from runtime.io.store import open_store
from runtime.state.files.segment_log import SegmentLog
from tests.jobs import live
from tests.jobs.numbers import Numbers, counts, expected_counts, final_counts
from tests.s3 import BUCKET, S3Server, environment_of
from tests.s3_proxy import ONCE_MORE, Fault, Faults, faulty_proxy

SOURCE = Numbers(total=20_000, splits=4, batch=20, keys=50)
SHORT = replace(SOURCE, total=5_000)
FAST = CoordinatorSettings(interval_ms=100, min_pause_ms=10)


@pytest.fixture
def files_of_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """The states of these jobs are small; as files, they are read from the bucket."""
    monkeypatch.setattr(SegmentLog, "base_inline_bytes", 0)
    monkeypatch.setattr(SegmentLog, "delta_inline_bytes", 0)


@pytest.fixture
def faults(s3_server: S3Server, bucket_uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    with faulty_proxy(s3_server) as (port, faults):
        for name, value in environment_of(port).items():
            monkeypatch.setenv(name, value)
        yield faults


class FailingOften:
    """A step that fails its attempt several times, at a batch that comes later each time."""

    def __init__(self, failures: int, batches: int) -> None:
        self._left, self._batches, self._seen = failures, batches, 0
        self._lock = threading.Lock()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        with self._lock:
            self._seen += 1
            if self._left and self._seen % self._batches == 0:
                self._left -= 1
                raise RuntimeError("the step fails")
        return batch


def fail_on(order: Path, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Fails once after the file `order` was created."""
    try:
        order.unlink()
    except FileNotFoundError:
        return batch
    raise RuntimeError("the step fails")


def _failures(records: MemoryRunStore) -> int:
    return [outcome for _, outcome, _ in records.attempts].count("failed")


def _has_failed(records: MemoryRunStore, times: int) -> bool:
    return _failures(records) == times


def prefix_of(uri: str) -> str:
    return uri.removeprefix(f"s3://{BUCKET}/")


def slow(folder: Path) -> Numbers:
    """Slow until the file `hurry` exists."""
    return replace(SOURCE, slow_until=str(folder / "hurry"), hurry=10)


def test_a_local_run_keeps_its_checkpoints_in_a_bucket(bucket_uri: str, s3_server: S3Server, tmp_path: Path) -> None:
    flow, restart = counts(SHORT, tmp_path / "out", FailingOften(3, 250)), FixedDelay(attempts=3, delay_ms=0)
    records = weir.run_local(flow, parallelism=2, storage=bucket_uri, settings=FAST, restart=restart)
    assert final_counts(tmp_path / "out") == expected_counts(SHORT)
    outcomes = [outcome for _, outcome, _ in records.attempts]
    assert outcomes.count("failed") == 3, outcomes
    kept = {key.removeprefix(prefix_of(bucket_uri)).split("/")[1] for key in s3_server.keys(prefix_of(bucket_uri))}
    assert kept, "manifests are in the bucket"
    assert len(kept) <= 6, "retention has deleted the older ones"


def test_a_job_is_restored_at_another_parallelism(bucket_uri: str, files_of_state: None, tmp_path: Path) -> None:
    source = slow(tmp_path)
    records = MemoryRunStore(token=Token(1))
    with live.running(counts(source, tmp_path / "out").compile(2), bucket_uri, records, FAST, retained=3) as run:
        run.checkpoints(3)
        savepoint = run.end("stop")
    (tmp_path / "hurry").touch()
    store = open_store(bucket_uri)
    manifest = run.manifests[-1]
    assert manifest.files(), "there is state to be read"
    assert store.sizes(f"{savepoint}/").keys() >= {segment.path for segment in manifest.files()}
    again = MemoryRunStore(token=Token(2), restore_from=savepoint)
    weir.run_local(counts(source, tmp_path / "out"), parallelism=3, storage=bucket_uri, settings=FAST, records=again)
    assert final_counts(tmp_path / "out") == expected_counts(SOURCE)


@pytest.mark.parametrize("is_bucket", [True, False])
def test_a_savepoint_in_a_bucket_is_imported_elsewhere(
    bucket_uri: str, files_of_state: None, is_bucket: bool, tmp_path: Path
) -> None:
    source = slow(tmp_path)
    with live.running(counts(source, tmp_path / "out").compile(2), bucket_uri, None, FAST) as run:
        run.checkpoints(2)
        savepoint = run.end("stop")
    (tmp_path / "hurry").touch()
    before = open_store(bucket_uri).sizes("")
    elsewhere = f"{bucket_uri}-2" if is_bucket else str(tmp_path / "elsewhere")
    again = MemoryRunStore(token=Token(9), restore_from=f"{bucket_uri}/{savepoint}")
    weir.run_local(counts(source, tmp_path / "out"), parallelism=2, storage=elsewhere, settings=FAST, records=again)
    assert final_counts(tmp_path / "out") == expected_counts(SOURCE)
    assert open_store(bucket_uri).sizes("") == before, "the origin is only read"


def test_a_job_survives_requests_that_fail(faults: Faults, bucket_uri: str, tmp_path: Path) -> None:
    """A tenth of the requests is lost, answered by 503, or loses its reply. Calls are repeated: no attempt ends."""
    rng = random.Random(7)
    faults.rule = lambda method, path: rng.choice(ONCE_MORE) if rng.random() < 0.1 else None
    records = weir.run_local(
        counts(SHORT, tmp_path / "out", FailingOften(2, 400)),
        parallelism=2, storage=bucket_uri, settings=FAST, restart=FixedDelay(attempts=2, delay_ms=0),
    )  # fmt: skip
    assert final_counts(tmp_path / "out") == expected_counts(SHORT)
    assert [outcome for _, outcome, _ in records.attempts].count("failed") == 2, "both of the step"


def test_an_outage_of_the_bucket_is_waited_for_and_counts_as_no_failure(
    faults: Faults, bucket_uri: str, tmp_path: Path
) -> None:
    """The restart strategy allows the failure of the step. The restores that follow in the outage fail too."""
    source, order = slow(tmp_path), tmp_path / "fail"
    job = counts(source, tmp_path / "out", partial(fail_on, order)).compile(2)
    restart = FixedDelay(attempts=1, delay_ms=0)
    with live.running(job, bucket_uri, None, FAST, restart=restart) as run:
        run.checkpoints(2)
        faults.rule = lambda method, path: Fault.UNAVAILABLE
        order.touch()
        run.wait_for(lambda: any("503 SlowDown" in str(reason) for _, _, reason in run.records.attempts))
        faults.rule = lambda method, path: None
        run.checkpoints(1)
        (tmp_path / "hurry").touch()
        run.join()
    assert run.records.failure is None
    assert final_counts(tmp_path / "out") == expected_counts(SOURCE)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_five_minutes_of_faults_end_no_run(
    faults: Faults, bucket_uri: str, files_of_state: None, tmp_path: Path
) -> None:
    """A twentieth of the requests fails. The step fails once a minute, so that state is restored."""
    rng, order, minutes = random.Random(11), tmp_path / "fail", 5
    faults.rule = lambda method, path: rng.choice(ONCE_MORE) if rng.random() < 0.05 else None
    source = replace(slow(tmp_path), total=100_000, batch=2)
    job = counts(source, tmp_path / "out", partial(fail_on, order)).compile(2)
    restart = FixedDelay(attempts=1, delay_ms=0)
    with live.running(job, bucket_uri, None, FAST, restart=restart, retained=3) as run:
        for failures in range(1, minutes + 1):
            threading.Event().wait(60)
            order.touch()
            run.wait_for(partial(_has_failed, run.records, failures))
            run.checkpoints(2)
        (tmp_path / "hurry").touch()
        run.join()
    assert _failures(run.records) == minutes
    assert final_counts(tmp_path / "out") == expected_counts(source)


@pytest.mark.slow
def test_replies_that_stall_end_no_attempt(
    faults: Faults, bucket_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For longer than a call waits for a reply. Checkpoints wait, and the job reads on."""
    timeout_s = 10
    monkeypatch.setattr(object_store, "READ_TIMEOUT_S", timeout_s)
    source = replace(slow(tmp_path), total=60_000, batch=2, hurry=100)
    job = counts(source, tmp_path / "out").compile(2)
    with live.running(job, bucket_uri, None, FAST) as run:
        run.checkpoints(2)
        with faults.stall.closed():
            rows = run.operator("counts")["records_in"]
            threading.Event().wait(timeout_s + 5)
            assert run.operator("counts")["records_in"] > rows
        run.checkpoints(2)
        (tmp_path / "hurry").touch()
        run.join()
    assert [outcome for _, outcome, _ in run.records.attempts].count("failed") == 0
    assert final_counts(tmp_path / "out") == expected_counts(source)


def test_a_small_state_costs_a_request_per_checkpoint(
    default_states: None, faults: Faults, bucket_uri: str, tmp_path: Path
) -> None:
    job = counts(slow(tmp_path), tmp_path / "out").compile(2)
    with live.running(job, bucket_uri, None, FAST) as run:
        run.checkpoints(1)
        completed, before = len(run.manifests), faults.requests.copy()
        run.checkpoints(10)
        made, requests = len(run.manifests) - completed, faults.requests - before
        run.end("cancel")
    assert requests["PUT"] <= made + 1, "a checkpoint that is being made has its request too"
    assert requests["GET"] == requests["POST"] == 0


def test_an_attempt_costs_two_listings(faults: Faults, bucket_uri: str, tmp_path: Path) -> None:
    job = counts(SHORT, tmp_path / "out", FailingOften(4, 150)).compile(2)
    records = live.run_to_end(job, bucket_uri, settings=FAST, restart=FixedDelay(attempts=4, delay_ms=0))
    attempts = [outcome for _, outcome, _ in records.attempts]
    assert attempts.count("failed") == 4, attempts
    assert faults.requests["LIST"] <= 2 * len(attempts)


def test_a_bucket_that_is_missing_is_refused_before_anything_starts(bucket_uri: str, tmp_path: Path) -> None:
    flow = counts(SOURCE, tmp_path / "out")
    with pytest.raises(weir.WeirError, match=r"no-such-bucket.*NoSuchBucket"):
        weir.run_local(flow, storage="s3://no-such-bucket/job")
    assert not (tmp_path / "out").exists()
