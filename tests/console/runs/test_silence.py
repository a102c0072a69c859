"""A job master that hangs: its process lives and its lease is kept, but it does nothing any more."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.runs.heartbeat_file import HeartbeatFile
from tests.console.world import Worker, World, alive
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def worker(place: World) -> Iterator[Worker]:
    with place.worker("runs", "-c1") as process:
        yield process


@pytest.mark.parametrize("never_spoke", [False, True])
def test_a_master_that_hangs_is_killed_and_followed(place: World, worker: Worker, never_spoke: bool) -> None:
    run_id = place.new_run(restart_strategy="fixed_delay", restart_delay_ms=0)
    if never_spoke:
        place.order("mute", run_id)
    place.supervise(run_id)
    token, master, child = place.master(run_id)
    if never_spoke:
        (place.var / "orders" / f"mute-{run_id}").unlink()
    os.kill(master, signal.SIGSTOP)
    newer, _, _ = place.master(run_id, after_token=token)
    assert not alive(master)
    assert not alive(child)
    first, second = place.attempts(run_id)
    assert first["outcome"] == "failed"
    assert first["reason"].startswith("The job master gave no sign for ")
    assert (second["token"], second["outcome"]) == (newer, "running")
    assert place.run(run_id)["releases"] == 0, "the lease was kept all along"
    place.order("exit", run_id, "0")
    until(lambda: place.run(run_id)["state"] == "finished")


def test_a_master_that_speaks_is_left_alone_for_longer_than_the_limit(place: World, worker: Worker) -> None:
    run_id = place.new_run()
    place.supervise(run_id)
    token, _, _ = place.master(run_id)
    until(lambda: place.run(run_id)["lease_beat"] > 8)  # a beat each second, and the limit is 6 s
    assert [attempt["token"] for attempt in place.attempts(run_id)] == [token]
    place.order("exit", run_id, "0")
    until(lambda: place.run(run_id)["state"] == "finished")


def test_silence_ends_with_a_beat_and_a_time_without_looking_is_not_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    (tmp_path / "run.beat").touch()  # of an older master
    watched = HeartbeatFile(tmp_path / "run.beat")
    now += 3
    assert watched.silent_s() == 3
    now += 3600
    assert watched.silent_s() == 3 + 15
    watched.file.touch()
    assert watched.silent_s() == 0
