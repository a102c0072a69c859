"""Standing stages whose worker is killed or shut down, or has no place left."""

import signal

import pytest

from tests.console.runs.test_standing_stages import end_run, new_stage, process, row, was_asked
from tests.console.world import World, alive
from tests.waiting import until

pytestmark = pytest.mark.slow


def test_a_killed_worker_leaves_no_process_and_another_worker_goes_on(place: World) -> None:
    with place.worker("standing", "-c1") as first_worker:
        run_id, stage_id = new_stage(place)
        first = process(place, run_id)
        owner = row(place, stage_id)["lease_owner"]
        first_worker.kill()
        until(lambda: not alive(first["pid"]))
        assert (place.var / "seen" / f"stage-{run_id}-orders-{first['--token']}.eof").exists()
    with place.worker("standing", "-c1"):
        second = process(place, run_id, after=int(first["--token"]))
        assert row(place, stage_id)["lease_owner"] not in ("", owner)
        end_run(place, run_id)
        until(lambda: not alive(second["pid"]))


def test_a_worker_that_is_shut_down_asks_its_stage_and_gives_it_back(place: World) -> None:
    with place.worker("standing", "-c1") as worker:
        run_id, stage_id = new_stage(place)
        first = process(place, run_id)
        until(lambda: row(place, stage_id)["state"] == "running")
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(30) == 0
    assert was_asked(place, run_id, first["--token"])
    assert (row(place, stage_id)["state"], row(place, stage_id)["lease_owner"]) == ("waiting", "")
    end_run(place, run_id)
    until(lambda: row(place, stage_id)["state"] == "ended")  # by the reconciler


def test_places_are_taken_in_turn(place: World) -> None:
    """A stage without a place waits, says so, and starts when one is free."""
    with place.worker("standing", "-c1"):
        first_run, _ = new_stage(place)
        process(place, first_run)
        second_run, second = new_stage(place)
        until(lambda: row(place, second)["observed_at"] is not None)  # the reconciler has seen it wait
        assert row(place, second)["state"] == "waiting"
        end_run(place, first_run)
        started = process(place, second_run)
        end_run(place, second_run)
        until(lambda: not alive(started["pid"]))
