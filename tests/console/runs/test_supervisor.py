"""The life of a run's supervisor, with a real worker, Redis, Postgres, and a small real program for the job master."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.console.world import Worker, World, alive
from tests.waiting import until

pytestmark = pytest.mark.slow

CLAIM_LIMIT_S = 10  #: a run whose worker was killed is claimed by another within this


@pytest.fixture(scope="module")
def crew(place: World) -> Iterator[Callable[[], list[Worker]]]:
    """Makes the workers on `runs` two again, whatever a test did to them."""
    workers: list[Worker] = []
    with contextlib.ExitStack() as stack:

        def complete() -> list[Worker]:
            workers[:] = [worker for worker in workers if worker.is_alive]
            while len(workers) < 2:
                workers.append(stack.enter_context(place.worker("runs", "-c2")))
            return workers

        yield complete


@pytest.fixture
def workers(crew: Callable[[], list[Worker]]) -> list[Worker]:
    return crew()


def ended(place: World, run_id: int) -> str:
    until(lambda: place.run(run_id)["ended_at"] is not None)
    return str(place.run(run_id)["state"])


def finish(place: World, run_id: int) -> None:
    """End a run that a test is done with, so that its supervisor frees its slot."""
    place.order("exit", run_id, "0")
    assert ended(place, run_id) == "finished"


def test_a_run_is_claimed_and_ends_as_its_master_records(place: World, workers: list[Worker]) -> None:
    run_id = place.new_run()
    place.supervise(run_id)
    token, master, child = place.master(run_id)
    row = place.run(run_id)
    assert (row["state"], row["token"]) == ("running", token)
    assert row["started_at"] is not None
    until(lambda: place.run(run_id)["lease_beat"] >= 2)
    place.supervise(run_id)  # a repeated message
    finish(place, run_id)
    until(lambda: not alive(master) and not alive(child))
    assert [attempt["token"] for attempt in place.attempts(run_id)] == [token]
    assert f"master of run {run_id} with token {token}" in (place.var / "log" / f"run-{run_id}.log").read_text()


def test_a_master_that_is_killed_is_followed_by_one_with_a_new_token(place: World, workers: list[Worker]) -> None:
    run_id = place.new_run(restart_strategy="fixed_delay", restart_delay_ms=100)
    place.supervise(run_id)
    token, master, child = place.master(run_id)
    os.kill(master, signal.SIGKILL)
    newer, next_master, _ = place.master(run_id, after_token=token)
    assert not alive(child), "what the dead master left behind is ended before the next begins"
    assert newer > token
    first, second = place.attempts(run_id)
    assert (first["outcome"], first["reason"]) == ("failed", "The job master ended with signal SIGKILL.")
    assert first["detail"]["log"] == [f"master of run {run_id} with token {token}"]
    assert (second["token"], second["outcome"], second["ended_at"]) == (newer, "running", None)
    until(lambda: place.run(run_id)["state"] == "running")
    assert place.run(run_id)["releases"] == 0
    finish(place, run_id)
    until(lambda: not alive(next_master))


def test_a_master_that_dies_too_often_fails_the_run_with_its_last_words(place: World, workers: list[Worker]) -> None:
    run_id = place.new_run(restart_strategy="fixed_delay", restart_attempts=2, restart_delay_ms=0)
    place.order("at-once", run_id, "1")
    place.supervise(run_id)
    assert ended(place, run_id) == "failed"
    row = place.run(run_id)
    assert row["failure"]["code"] == "master-died"
    assert "exit code 1; it was restarted 2 times" in row["failure"]["message"]
    assert row["failure"]["detail"].endswith("nothing works")
    assert [attempt["outcome"] for attempt in place.attempts(run_id)] == ["failed"] * 3


def test_exit_code_0_without_a_recorded_end_is_a_death(place: World, workers: list[Worker]) -> None:
    run_id = place.new_run(restart_strategy="fixed_delay", restart_attempts=0)
    place.order("at-once", run_id, "0")
    place.supervise(run_id)
    assert ended(place, run_id) == "failed"


def test_a_superseded_master_is_not_followed_by_its_supervisor(place: World, workers: list[Worker]) -> None:
    run_id = place.new_run()
    place.supervise(run_id)
    token, _, _ = place.master(run_id)
    place.order("exit", run_id, "4")
    newer, _, _ = place.master(run_id, after_token=token)
    assert place.run(run_id)["releases"] == 1, "it came back through the reconciler, by its lost lease"
    assert [attempt["outcome"] for attempt in place.attempts(run_id)] == ["lost", "running"]
    assert newer > token
    finish(place, run_id)


def test_a_master_that_suspends_gives_the_run_back(place: World, workers: list[Worker]) -> None:
    run_id = place.new_run()
    place.supervise(run_id)
    token, _, _ = place.master(run_id)
    place.order("exit", run_id, "5")
    place.master(run_id, after_token=token)
    assert [attempt["outcome"] for attempt in place.attempts(run_id)] == ["released", "running"]
    finish(place, run_id)


def test_a_supervisor_without_its_lease_ends_the_master_and_leaves_the_row_alone(
    place: World, workers: list[Worker]
) -> None:
    run_id = place.new_run()
    place.supervise(run_id)
    token, master, child = place.master(run_id)
    # The other supervisor exists only as a row, so it is kept alive here until the old master is gone.
    place.sql("UPDATE weir_run SET lease_owner = 'another', token = nextval('weir_token_seq') WHERE id = %s", run_id)
    new_token = place.run(run_id)["token"]

    def gone() -> bool:
        place.sql("UPDATE weir_run SET lease_beat = lease_beat + 1 WHERE id = %s", run_id)
        return not alive(master) and not alive(child)

    until(gone)
    row = place.run(run_id)
    assert (row["state"], row["token"], row["lease_owner"], row["releases"]) == ("running", new_token, "another", 0)
    assert new_token > token
    place.master(run_id, after_token=new_token)  # nobody beats for `another` any more
    finish(place, run_id)


def test_a_run_that_was_cancelled_when_its_master_died_is_canceled(place: World, workers: list[Worker]) -> None:
    run_id = place.new_run()
    place.supervise(run_id)
    _, master, _ = place.master(run_id)
    place.sql("UPDATE weir_run SET state = 'cancelling' WHERE id = %s", run_id)
    os.kill(master, signal.SIGKILL)
    assert ended(place, run_id) == "canceled"


# ---------------------------------------------------------------- the worker goes


def holder_of(place: World, workers: list[Worker], run_id: int) -> Worker:
    owner = place.run(run_id)["lease_owner"]
    return next(worker for worker in workers if worker.holds(owner))


def test_a_worker_that_is_killed_loses_its_run_to_another(place: World, workers: list[Worker]) -> None:
    run_id = place.new_run()
    place.supervise(run_id)
    token, master, child = place.master(run_id)
    holder = holder_of(place, workers, run_id)
    holder.kill()
    killed_at = time.time()
    place.master(run_id, after_token=token)
    first, second = place.attempts(run_id)
    assert second["started_at"].timestamp() - killed_at < CLAIM_LIMIT_S
    assert (first["outcome"], first["reason"]) == ("lost", "The supervisor's lease was lost.")
    assert place.saw_eof(run_id, token), "the master's stdin ended with its supervisor"
    until(lambda: not alive(master))
    os.kill(child, signal.SIGKILL)  # a real master ends its children itself when its stdin ends
    finish(place, run_id)


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_worker_that_is_shut_down_suspends_its_run(place: World, workers: list[Worker], stubborn: bool) -> None:
    run_id = place.new_run()
    if stubborn:
        place.order("stubborn", run_id)
    place.supervise(run_id)
    token, master, child = place.master(run_id)
    holder = holder_of(place, workers, run_id)
    holder.process.send_signal(signal.SIGTERM)
    assert holder.process.wait(30) == 0
    assert not alive(master)
    assert not alive(child)
    place.master(run_id, after_token=token)
    first = place.attempts(run_id)[0]
    assert (first["outcome"], first["reason"]) == ("released", "The worker was shut down.")
    assert not place.saw_eof(run_id, token)
    finish(place, run_id)


# ---------------------------------------------------------------- Postgres goes


def outage(place: World, seconds: float) -> None:
    place.stop_postgres()
    time.sleep(seconds)  # the length of the outage is the case under test, not something to wait for
    place.start_postgres()


def test_an_outage_of_postgres_costs_a_healthy_run_nothing(place: World, workers: list[Worker]) -> None:
    """Longer than a lease: the reconciler may count only the time in which it could have seen a beat."""
    run_id = place.new_run()
    place.supervise(run_id)
    token, master, _ = place.master(run_id)
    outage(place, 7)
    beat = place.run(run_id)["lease_beat"]
    until(lambda: place.run(run_id)["lease_beat"] > beat + 3)
    row = place.run(run_id)
    assert (row["state"], row["token"], row["releases"]) == ("running", token, 0)
    assert alive(master)
    finish(place, run_id)


def test_a_master_that_dies_during_an_outage_is_followed_after_it(place: World, workers: list[Worker]) -> None:
    run_id = place.new_run(restart_strategy="fixed_delay", restart_delay_ms=0)
    place.supervise(run_id)
    token, master, _ = place.master(run_id)
    place.stop_postgres()
    os.kill(master, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{master}").exists())  # reaped: the supervisor has noticed
    with pytest.raises(psycopg.OperationalError):
        place.run(run_id)
    place.start_postgres()
    place.master(run_id, after_token=token)
    assert place.attempts(run_id)[0]["reason"] == "The job master ended with signal SIGKILL."
    finish(place, run_id)


# ---------------------------------------------------------------- wake-ups


def test_a_run_whose_wake_up_was_lost_is_found(place: World, workers: list[Worker]) -> None:
    run_id = place.new_run()
    place.master(run_id)
    finish(place, run_id)


def test_workers_with_room_take_what_busy_ones_cannot(place: World, workers: list[Worker]) -> None:
    """Two workers with two places each: four runs at once, and the fifth as soon as there is room."""
    run_ids = [place.new_run() for _ in range(5)]
    for run_id in run_ids:
        place.supervise(run_id)

    def running() -> list[int]:
        return [run_id for run_id in run_ids if place.run(run_id)["state"] == "running"]

    until(lambda: len(running()) == 4)
    owners = [place.run(run_id)["lease_owner"] for run_id in running()]
    assert [sum(map(worker.holds, owners)) for worker in workers] == [2, 2]
    [waiting] = set(run_ids) - set(running())
    assert place.run(waiting)["state"] == "queued"
    finish(place, running()[0])
    place.master(waiting)
    for run_id in running():
        finish(place, run_id)


def test_an_outage_of_the_broker_costs_a_healthy_run_nothing(place: World, workers: list[Worker]) -> None:
    """Nor does it make a worker deaf: each of the two holds a run, and one must still take the next."""
    run_ids = [place.new_run() for _ in range(3)]
    for run_id in run_ids:
        place.supervise(run_id)
    masters = [place.master(run_id) for run_id in run_ids]
    assert all(any(worker.holds(place.run(run_id)["lease_owner"]) for run_id in run_ids) for worker in workers)
    place.stop_redis()
    beat = place.run(run_ids[0])["lease_beat"]
    until(lambda: place.run(run_ids[0])["lease_beat"] > beat + 3)
    place.start_redis()
    another = place.new_run()  # found by a reconciler and a worker that have both come back
    place.master(another, limit_s=90)
    for run_id, (token, master, _) in zip(run_ids, masters, strict=True):
        row = place.run(run_id)
        assert (row["state"], row["token"], row["releases"]) == ("running", token, 0)
        assert alive(master)
    for ended_one in (*run_ids, another):
        finish(place, ended_one)
