"""The logs of a run over REST: the files, parts of a file, and the secrets and paths that no answer may have."""

from pathlib import Path
from typing import Any

import pytest
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

from console.accounts.models import User
from console.api import logs
from console.jobs.models import Run
from tests.console.api.test_api import check_problem
from tests.console.conftest import api_as
from tests.console.ui import rows
from tests.console.ui.test_runlog import run_with_log, run_with_slots

pytestmark = pytest.mark.django_db


def test_the_files_of_a_run_are_listed(api: APIClient, settings: Settings, tmp_path: Path) -> None:
    run = run_with_slots(settings, tmp_path)
    Run.objects.filter(pk=run.pk).update(lease_owner="node-1:4711:abc")
    logs = api.get(f"/api/v1/runs/{run.pk}/logs/").json()["logs"]
    assert [(each["slot"], each["host"], each["in_log_of_master"]) for each in logs] == [
        (None, "node-1", False), (0, "worker-0", True), (1, "worker-1", False), (2, "worker-2", False),
    ]  # fmt: skip
    master, _, slot, elsewhere = logs
    assert (master["path"], master["size_bytes"]) == (str(tmp_path / f"run-{run.pk}.log"), len("of the master\n"))
    assert slot["size_bytes"] == Path(slot["path"]).stat().st_size
    assert (elsewhere["path"], elsewhere["size_bytes"]) == (str(tmp_path / "elsewhere"), None), "no file of this run"


def test_a_log_is_followed_without_secrets(api: APIClient, settings: Settings, tmp_path: Path) -> None:
    run = run_with_slots(settings, tmp_path)
    path, log = f"/api/v1/runs/{run.pk}/log/", tmp_path / "work" / "app-20261126101112-0001" / "1" / "stderr"
    part = api.get(path, {"slot": "1"}).json()
    assert [line["text"] for line in part["lines"]] == ["first line", "slot lost  slot=1", "password=********"]
    assert (part["begin"], part["end"], part["size_bytes"]) == (0, log.stat().st_size, log.stat().st_size)
    assert part["lines"][1]["time"] == "2026-11-25T23:58:33.477888Z"
    with log.open("a") as file:
        file.write("one more\nand n")
    later = api.get(path, {"slot": "1", "offset": str(part["end"])}).json()
    assert [line["text"] for line in later["lines"]] == ["one more"]
    assert later["end"] == part["end"] + len("one more\n")
    warnings = api.get(path, {"slot": "1", "level": "warning", "text": "LOST"}).json()["lines"]
    assert [line["text"] for line in warnings] == ["slot lost  slot=1"]
    assert api.get(path, {"slot": "1", "text": "a-river"}).json()["lines"] == [], "a hit would show a secret"
    assert [line["text"] for line in api.get(path).json()["lines"]] == ["of the master"]


def test_a_part_has_a_limited_size(api: APIClient, settings: Settings, tmp_path: Path) -> None:
    run = run_with_log(settings, tmp_path, "".join(f"line {number:04}\n" for number in range(1_000)))
    path = f"/api/v1/runs/{run.pk}/log/"
    part = api.get(path, {"limit": logs.MIN_BYTES}).json()
    assert part["end"] == part["size_bytes"] == 10_000
    assert part["lines"][-1]["text"] == "line 0999"
    assert len(part["lines"]) == logs.MIN_BYTES // 10
    first = api.get(path, {"offset": 0, "limit": logs.MIN_BYTES}).json()
    assert (first["lines"][0]["text"], first["end"]) == ("line 0000", logs.MIN_BYTES // 10 * 10)
    wrong: tuple[dict[str, Any], ...] = (
        {"limit": logs.MIN_BYTES - 1}, {"limit": logs.MAX_BYTES + 1}, {"offset": -1}, {"slot": "x"}, {"level": "loud"},
    )  # fmt: skip
    for query in wrong:
        check_problem(api.get(path, query), 422, "invalid-field", f"/{next(iter(query))}")


def test_no_answer_has_a_file_outside_the_logs_of_the_run(api: APIClient, settings: Settings, tmp_path: Path) -> None:
    """Slot 0 writes into the log of the job master, slot 2 names another file, and there is no slot 3."""
    run = run_with_slots(settings, tmp_path)
    for slot in (0, 2, 3):
        check_problem(api.get(f"/api/v1/runs/{run.pk}/log/", {"slot": slot}), 404, "not-found")
    (tmp_path / f"run-{run.pk}.log").unlink()
    check_problem(api.get(f"/api/v1/runs/{run.pk}/log/"), 404, "not-found")
    assert api.get(f"/api/v1/runs/{run.pk}/logs/").json()["logs"][0]["size_bytes"] is None


@pytest.mark.parametrize("route", ["log", "logs"])
def test_every_user_reads_logs_and_no_stranger(
    viewer: User, settings: Settings, tmp_path: Path, route: str, django_assert_max_num_queries: Any
) -> None:
    run = run_with_log(settings, tmp_path, "plain\n")
    path, client = f"/api/v1/runs/{run.pk}/{route}/", api_as(viewer)
    check_problem(APIClient().get(path), 401, "not-authenticated")
    with django_assert_max_num_queries(5):
        assert client.get(path).status_code == 200
    assert client.get(f"/api/v1/runs/{run.pk + 1}/{route}/").status_code == 404


def test_a_run_without_a_report_has_the_log_of_its_master(api: APIClient, settings: Settings, tmp_path: Path) -> None:
    settings.WEIR_LOGS = tmp_path
    run = rows.run(rows.job(), "queued", live=None, live_at=None)
    (master,) = api.get(f"/api/v1/runs/{run.pk}/logs/").json()["logs"]
    assert (master["slot"], master["size_bytes"]) == (None, None)
