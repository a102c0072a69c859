"""Compiling, with a real worker on `stages` and a real child process for each stage."""

import json
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from tests.console.world import Worker, World, alive
from tests.waiting import until


@pytest.fixture(scope="module")
def steady(place: World) -> Iterator[Worker]:
    """A worker that no test ends."""
    with place.worker("stages", "-c2") as worker:
        yield worker


def new_version(place: World, **params: object) -> int:
    query = """
        WITH job AS (INSERT INTO weir_job (name, pipeline) VALUES (gen_random_uuid()::text, 'sums') RETURNING id)
        INSERT INTO weir_job_version (job_id, number, parallelism, state, params)
        SELECT id, 1, 2, 'compiling', %s::jsonb FROM job RETURNING id
    """
    return int(place.sql(query, json.dumps(params))[0]["id"])


def version(place: World, version_id: int) -> dict[str, Any]:
    return place.sql("SELECT * FROM weir_job_version WHERE id = %s", version_id)[0]


def compiled(place: World, version_id: int) -> dict[str, Any]:
    place.wake("compile_version", version_id, "stages")
    until(lambda: version(place, version_id)["state"] != "compiling")
    return version(place, version_id)


def test_a_version_is_compiled_with_its_own_numbers(place: World, steady: Worker) -> None:
    version_id = new_version(place)
    row = compiled(place, version_id)
    assert (row["state"], row["error"]) == ("ready", None)
    assert row["graph"]["asked"] == {
        "--pipeline": "sums", "--parallelism": "2", "--max-parallelism": "128", "--mode": "streaming",
        "--columns": str(place.var / "inputs" / str(row["job_id"]) / "columns" / str(version_id)),
    }  # fmt: skip


def test_what_the_stage_rejects_is_shown_as_it_said_it(place: World, steady: Worker) -> None:
    row = compiled(place, new_version(place, reject="no such folder"))
    assert (row["state"], row["graph"]) == ("rejected", None)
    assert row["error"] == {"code": "bad-path", "field": "path", "detail": "no such folder"}


@pytest.mark.parametrize(
    ("params", "detail"),
    [
        ({"crash": "out of memory"}, "compile ended with exit code 1."),
        ({"garble": 1}, "compile did not print the expected JSON"),
    ],
)
def test_a_stage_that_breaks_rejects_the_version_with_its_log(
    place: World, steady: Worker, params: dict[str, Any], detail: str
) -> None:
    error = compiled(place, new_version(place, **params))["error"]
    assert error["code"] == "stage-failed"
    assert error["detail"].startswith(detail)
    assert error.get("log", "") == params.get("crash", "")


def test_a_repeated_message_compiles_nothing_again(place: World, steady: Worker) -> None:
    version_id = new_version(place)
    first = compiled(place, version_id)
    place.wake("compile_version", version_id, "stages")
    compiled(place, new_version(place))
    assert version(place, version_id) == first


# ---------------------------------------------------------------- queries of a checkpoint's state


def new_query(place: World, name: str) -> int:
    """A query of a completed savepoint of a run."""
    statement = """
        WITH checkpoint AS (
            INSERT INTO weir_checkpoint (job_id, run_id, token, number, kind, status, path)
            SELECT job_id, id, 1, 1, 'savepoint', 'completed', 'savepoint-1-1' FROM weir_run WHERE id = %s RETURNING id)
        INSERT INTO weir_state_query (checkpoint_id, request)
        SELECT id, %s::jsonb FROM checkpoint RETURNING id
    """
    request = json.dumps({"kind": "sql", "name": name, "sql": "SELECT 1"})
    return int(place.sql(statement, place.new_run("finished"), request)[0]["id"])


def query(place: World, query_id: int) -> dict[str, Any]:
    return place.sql("SELECT * FROM weir_state_query WHERE id = %s", query_id)[0]


def wake_query(place: World, query_id: int) -> None:
    place.wake("answer_state_query", query_id, "stages")


def ended(place: World, query_id: int) -> dict[str, Any]:
    wake_query(place, query_id)
    until(lambda: query(place, query_id)["ended_at"])
    return query(place, query_id)


def test_a_query_of_state_gets_its_table_or_why_there_is_none(place: World, steady: Worker) -> None:
    answered, refused = new_query(place, "fine"), new_query(place, "reject")
    row = ended(place, answered)
    assert (row["state"], row["result"]["rows"], row["progress"]) == ("succeeded", [["AA"]], None)
    assert row["result"]["asked"]["--checkpoint"].endswith("/savepoint-1-1")
    row = ended(place, refused)
    assert (row["state"], row["error"]["detail"]) == ("failed", "cannot be read")


def test_a_query_of_state_shows_its_progress_and_is_ended_when_it_is_canceled(place: World, steady: Worker) -> None:
    query_id = new_query(place, "hang")
    wake_query(place, query_id)
    until(lambda: query(place, query_id)["progress"])
    assert query(place, query_id)["progress"] == {"phase": "reading", "tasks": 4, "tasks_done": 1}
    (stage,) = until(lambda: children_of(steady))
    place.sql("UPDATE weir_state_query SET state = 'canceled' WHERE id = %s", query_id)
    until(lambda: not alive(stage))
    assert query(place, query_id)["state"] == "canceled"


def test_a_worker_that_is_shut_down_ends_its_stage_and_leaves_the_version_to_another(
    place: World, steady: Worker
) -> None:
    version_id = new_version(place, hang=True)
    place.wake("compile_version", version_id, "stages")
    stage = until(lambda: children_of(steady))[0]
    steady.process.send_signal(signal.SIGTERM)
    assert steady.process.wait(30) == 0
    assert not alive(stage)
    assert version(place, version_id)["state"] == "compiling"


def children_of(worker: Worker) -> list[int]:
    """The stages that the worker is running."""
    return [child.pid for child in psutil.Process(worker.process.pid).children()]
