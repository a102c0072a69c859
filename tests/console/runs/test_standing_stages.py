"""Standing stages with a real worker and a real child process: they live as long as their run."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.console.world import Worker, World, alive
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def steady(place: World) -> Iterator[Worker]:
    with place.worker("standing", "-c2") as worker:
        yield worker


def new_stage(place: World, operator: str = "orders", state: str = "running", **params: object) -> tuple[int, int]:
    """A run and its stage, which a worker has been asked to attend to."""
    run_id = place.new_run(
        state, params=json.dumps(params), restart_strategy="fixed_delay", restart_delay_ms=100, restart_attempts=2
    )
    return run_id, add_stage(place, run_id, operator)


def add_stage(place: World, run_id: int, operator: str) -> int:
    query = "INSERT INTO weir_standing_stage (run_id, operator, verb) VALUES (%s, %s, 'stream') RETURNING id"
    stage_id = int(place.sql(query, run_id, operator)[0]["id"])
    place.wake("attend_stage", stage_id, "standing")
    return stage_id


def row(place: World, stage_id: int) -> dict[str, Any]:
    return place.sql("SELECT * FROM weir_standing_stage WHERE id = %s", stage_id)[0]


def process(place: World, run_id: int, *, after: int = 0, operator: str = "orders") -> dict[str, Any]:
    """What the first process of the stage with a token above `after` was started with."""

    def started() -> dict[str, Any] | None:
        starts = [
            json.loads(path.read_text()) for path in (place.var / "seen").glob(f"stage-{run_id}-{operator}-*.json")
        ]
        return min(
            (start for start in starts if int(start["--token"]) > after),
            key=lambda start: int(start["--token"]),
            default=None,
        )

    arguments = until(started)
    assert arguments is not None
    return arguments


def was_asked(place: World, run_id: int, token: str) -> bool:
    """Whether that process ended by itself, after SIGTERM."""
    return (place.var / "seen" / f"stage-{run_id}-orders-{token}.asked").exists()


def end_run(place: World, run_id: int, state: str = "stopped") -> None:
    place.sql("UPDATE weir_run SET state = %s, lease_owner = '', ended_at = now() WHERE id = %s", state, run_id)


def test_a_stage_reports_while_its_run_lasts_and_ends_with_it_between_two_steps(place: World, steady: Worker) -> None:
    run_id, stage_id = new_stage(place)
    started = process(place, run_id)
    until(lambda: (row(place, stage_id)["live"] or {}).get("steps", 0) > 2)
    assert row(place, stage_id)["state"] == "running"
    assert row(place, stage_id)["live"]["figures"][0]["label"] == "Steps"
    job = place.run(run_id)["job_id"]
    assert started["verb"] == "stream"
    assert started["--inputs"] == str(place.var / "inputs" / str(job) / str(run_id))
    assert started["--streams"] == str(place.var / "inputs" / str(job) / "streams" / str(run_id))
    end_run(place, run_id)
    until(lambda: row(place, stage_id)["state"] == "ended")
    assert was_asked(place, run_id, started["--token"])
    assert not alive(started["pid"])
    assert row(place, stage_id)["lease_owner"] == ""


def test_a_killed_process_is_followed_by_another_under_a_newer_token(place: World, steady: Worker) -> None:
    run_id, stage_id = new_stage(place)
    first = process(place, run_id)
    until(lambda: row(place, stage_id)["state"] == "running")
    os.kill(first["pid"], signal.SIGKILL)
    second = process(place, run_id, after=int(first["--token"]))
    until(lambda: row(place, stage_id)["state"] == "running")
    assert row(place, stage_id)["deaths"] == 1
    assert "SIGKILL" in row(place, stage_id)["reason"]
    assert place.run(run_id)["state"] == "running"
    end_run(place, run_id)
    until(lambda: not alive(second["pid"]))


def test_what_a_stage_refuses_fails_its_run_by_name(place: World, steady: Worker) -> None:
    run_id, stage_id = new_stage(place, refuse="its DataFrame has an end")
    until(lambda: place.run(run_id)["state"] == "failed")
    failure = place.run(run_id)["failure"]
    assert (failure["code"], failure["operator"]) == ("bad-query", "orders")
    assert failure["message"] == "The stage of orders: its DataFrame has an end"
    until(lambda: row(place, stage_id)["state"] == "failed")
    assert row(place, stage_id)["deaths"] == 0


def test_a_stage_that_dies_again_and_again_fails_its_run_as_the_restart_strategy_says(
    place: World, steady: Worker
) -> None:
    run_id, stage_id = new_stage(place, die="the metastore is away")
    until(lambda: place.run(run_id)["state"] == "failed")
    failure = place.run(run_id)["failure"]
    assert failure["code"] == "input-failed"
    assert "it was restarted 2 times" in failure["message"]
    assert "the metastore is away" in failure["message"]
    until(lambda: row(place, stage_id)["state"] == "failed")
    assert row(place, stage_id)["deaths"] == 2


def test_a_stage_that_has_done_everything_ends_before_its_run(place: World, steady: Worker) -> None:
    run_id, stage_id = new_stage(place, done=3)
    until(lambda: row(place, stage_id)["state"] == "done")
    assert row(place, stage_id)["live"]["steps"] == 3, "its last report stays to be seen"
    assert (row(place, stage_id)["lease_owner"], row(place, stage_id)["deaths"]) == ("", 0)
    assert place.run(run_id)["state"] == "running"
    for _ in range(2):
        place.wake("attend_stage", stage_id, "standing")
    other_run, _ = new_stage(place)
    process(place, other_run)  # by then the repeated messages have been taken
    assert len(list((place.var / "seen").glob(f"stage-{run_id}-*.json"))) == 1
    for ended in (run_id, other_run):
        end_run(place, ended)
