"""The log of a job master and those of slots on the page of their run."""

from pathlib import Path

import pytest
from django.test import Client
from pytest_django.fixtures import Settings

from console.jobs.models import Connection, Run
from console.runs.logs import LogSecrets, plain_log
from tests.console.runs.test_logs import EVENT, PARAMS, SECRET
from tests.console.ui import blocks, rows


def run_with_log(settings: Settings, tmp_path: Path, text: str) -> Run:
    settings.WEIR_LOGS = tmp_path
    run = rows.run(rows.job(version={"params": {**rows.PARAMS, **PARAMS}}))
    (tmp_path / f"run-{run.pk}.log").write_text(text)
    return run


def test_the_page_shows_readable_lines_and_keeps_the_filter_in_polls(
    at_console: Client, settings: Settings, tmp_path: Path
) -> None:
    run = run_with_log(settings, tmp_path, f"plain\n{EVENT}\n")
    page = at_console.get(f"/runs/{run.pk}/?level=warning")
    assert "2026-11-25 23:58:33Z warning slot lost slot=1" in blocks.text(page)
    assert "plain" not in blocks.live(page)["log"]
    assert f'hx-get="/runs/{run.pk}/?level=warning"' in page.content.decode()
    nothing = at_console.get(f"/runs/{run.pk}/?text=no-such-text")
    assert "No line matches the filter" in blocks.text(nothing)


def test_a_log_on_another_host_has_no_filter(at_console: Client, settings: Settings, tmp_path: Path) -> None:
    run = run_with_log(settings, tmp_path, "plain\n")
    form, path = 'aria-label="Lines of the log"', f"/runs/{run.pk}/"
    assert form in at_console.get(path).content.decode()
    (tmp_path / f"run-{run.pk}.log").unlink()
    page = at_console.get(path)
    assert "This host does not have the log." in blocks.text(page)
    assert form not in page.content.decode()


def test_the_whole_log_is_a_download_without_secrets(
    at_console: Client, stranger: Client, settings: Settings, tmp_path: Path
) -> None:
    run = run_with_log(settings, tmp_path, f"plain\n{EVENT}\n")
    answer = at_console.get(f"/runs/{run.pk}/log/")
    assert answer.content.decode() == f"plain\n{EVENT}\n"
    assert answer["Content-Disposition"] == f'attachment; filename="run-{run.pk}.log"'
    assert stranger.get(f"/runs/{run.pk}/log/").status_code == 302
    (tmp_path / f"run-{run.pk}.log").unlink()
    assert at_console.get(f"/runs/{run.pk}/log/").status_code == 404
    (tmp_path / "secret.log").write_text("password=a-river-runs\n")
    assert "a-river-runs" not in (plain_log(tmp_path / "secret.log", LogSecrets("", PARAMS, SECRET)) or "")


@pytest.mark.parametrize("pipelines", ["{pipeline}", "*"])
def test_a_log_masks_the_secrets_of_every_connection_of_the_pipeline(
    at_console: Client, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipelines: str
) -> None:
    """Code of a package may use a connection that no parameter names, and a library prints its address."""
    run = run_with_log(settings, tmp_path, "no way to app:fish-and-chips@db\n")
    monkeypatch.setenv("WEIR_SECRET_SHOP", "fish-and-chips")
    address = "postgresql://app:${secret:shop}@db/shop"
    Connection.objects.create(name="shop", address=address, pipelines=pipelines.format(pipeline=run.job.pipeline))
    for page in (f"/runs/{run.pk}/log/", f"/runs/{run.pk}/"):
        text = at_console.get(page).content.decode()
        assert "no way to app:********@db" in text
        assert "fish-and-chips" not in text


APPLICATION = "app-20261126101112-0001"


def run_with_slots(settings: Settings, tmp_path: Path) -> Run:
    """Slot 0 writes into the log of the job master, slot 1 below an allowed folder, slot 2 elsewhere."""
    work = tmp_path / "work" / APPLICATION / "1"
    work.mkdir(parents=True)
    (work / "stderr").write_text(f"first line\n{EVENT}\npassword=a-river-runs\n")
    (tmp_path / "elsewhere").write_text("root:x:0\n")
    settings.WEIR_SLOT_LOGS = (tmp_path / "work",)
    run = run_with_log(settings, tmp_path, "of the master\n")
    paths = (tmp_path / f"run-{run.pk}.log", work / "stderr", tmp_path / "elsewhere")
    slots = [{"index": at, "host": f"worker-{at}", "log": str(path)} for at, path in enumerate(paths)]
    Run.objects.filter(pk=run.pk).update(live={**rows.live(), "slots": slots, "spark_application": APPLICATION})
    return run


def test_the_log_of_a_slot_is_shown_if_its_folder_is_allowed(
    at_console: Client, settings: Settings, tmp_path: Path
) -> None:
    run = run_with_slots(settings, tmp_path)
    path = f"/runs/{run.pk}/"
    said = blocks.text(at_console.get(path))
    assert "Slot 0 writes into the log of the job master." in said
    assert f"Log of slot 2: {tmp_path / 'elsewhere'} on worker-2." in said
    assert "of the master" in said
    page = at_console.get(f"{path}?slot=1&level=warning")
    assert "Log of slot 1" in blocks.text(page)
    assert "slot lost slot=1" in blocks.text(page)
    assert "first line" not in blocks.live(page)["log"]
    answer = at_console.get(f"{path}log/?slot=1")
    assert answer.content.decode().startswith("first line\n")
    assert "a-river-runs" not in answer.content.decode()
    assert answer["Content-Disposition"] == f'attachment; filename="run-{run.pk}-slot-1.log"'


def test_a_slot_cannot_name_a_file_outside_the_allowed_folders(
    at_console: Client, settings: Settings, tmp_path: Path
) -> None:
    """The author's code runs in slots, and so may report any path; a link leads out of a folder."""
    run = run_with_slots(settings, tmp_path)
    folder = tmp_path / "work" / APPLICATION
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    slots = [{"index": 3, "log": str(folder / "link")}, {"index": 4, "log": f"{folder}/../../elsewhere"}]
    report = {**rows.live(), "slots": slots, "spark_application": APPLICATION}
    Run.objects.filter(pk=run.pk).update(live=report)
    for slot in (2, 3, 4):
        assert at_console.get(f"/runs/{run.pk}/log/?slot={slot}").status_code == 404
        assert "root:x:0" not in blocks.text(at_console.get(f"/runs/{run.pk}/?slot={slot}"))


@pytest.mark.parametrize("application", [APPLICATION, "", None])
def test_a_slot_cannot_name_the_log_of_another_job(
    at_console: Client, settings: Settings, tmp_path: Path, application: str | None
) -> None:
    """Logs of all jobs lie below the same folder, each in that of its Spark application."""
    run = run_with_slots(settings, tmp_path)
    other = tmp_path / "work" / "app-20261126101112-0002" / "0"
    other.mkdir(parents=True)
    (other / "stderr").write_text("of another job\n")
    (tmp_path / "work" / APPLICATION / "1" / "link").symlink_to(other / "stderr")
    paths = (other / "stderr", tmp_path / "work" / APPLICATION / "1" / "link", tmp_path / "work" / "stray")
    (tmp_path / "work" / "stray").write_text("of another job\n")
    slots = [{"index": index, "log": str(path)} for index, path in enumerate(paths)]
    report = {**rows.live(), "slots": slots, "spark_application": application}
    Run.objects.filter(pk=run.pk).update(live=report)
    for slot in range(3):
        assert at_console.get(f"/runs/{run.pk}/log/?slot={slot}").status_code == 404
        assert "of another job" not in blocks.text(at_console.get(f"/runs/{run.pk}/?slot={slot}"))
