"""The dead letters of a job on its page and over REST, from files that a job of the runtime has written."""

import ctypes
import json
import re
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from pytest_django.fixtures import Settings
from rest_framework.test import APIClient

import weir
from console.jobs.models import Job
from console.pages import dead_letters as letters_of_job
from runtime.access.data_roots import DataRoots
from runtime.operators.functions.set_aside import SET_ASIDE_COUNTER
from tests.console.ui import rows
from tests.jobs.numbers import SCHEMA, Numbers

pytestmark = pytest.mark.django_db


def price(row: dict[str, Any]) -> dict[str, Any]:
    if row["value"] % 10 == 3:
        raise LookupError(f"no price of {row['value']} <b>")
    return row if row["value"] % 10 != 4 else {"key": "text"}


def flow(name: str, folder: Path, total: int) -> weir.Dataflow:
    flow = weir.Dataflow(name)
    numbers, policy = flow.source("numbers", Numbers(total, splits=1)), weir.SetAside(str(folder))
    numbers.map("price", price, SCHEMA, on_error=policy).sink("out", weir.DiscardSink())
    return flow


def job_with_letters(name: str, folder: Path, *, total: int = 50) -> Job:
    """A job whose rows became dead letters of two errors, a fifth of them in all."""
    graph = {**rows.GRAPH, **flow(name, folder, total).compile(1).graph.to_json()}
    for operator in graph["operators"]:
        operator["most"] = 128  # as the compile stage adds
    job = rows.job(name, {"graph": graph})
    rows.run(job)
    weir.run_local(flow(str(job.pk), folder, total), parallelism=1, storage=str(folder.parent / f"state-{name}"))
    job.refresh_from_db()
    return job


@pytest.fixture
def job(tmp_path: Path, settings: Settings) -> Job:
    settings.WEIR_DATA_ROOTS = [tmp_path]
    return job_with_letters("prices", tmp_path / "letters")


def shown(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", "", page).split())


def test_page_and_api_show_dead_letters_by_operator_and_error(job: Job, browser: Client, api: APIClient) -> None:
    path = f"/jobs/{job.pk}/dead-letters/"
    answer = api.get(f"/api/v1{path}").json()
    assert [(each["operator"], each["error"], each["rows"]) for each in answer["counts"]] == [
        ("price", "LookupError", 5), ("price", "TypeError", 5),
    ]  # fmt: skip
    assert (answer["total"], len(answer["letters"]), answer["is_cut"], answer["fault"]) == (10, 10, False, "")
    assert {each["row"] for each in answer["letters"] if each["error"] == "LookupError"} == {
        f'{{"key":{value * 31 % 7},"value":{value}}}' for value in (3, 13, 23, 33, 43)
    }
    chosen = api.get(f"/api/v1{path}", {"error": "TypeError", "offset": "3", "limit": "1"}).json()
    assert (chosen["total"], len(chosen["letters"])) == (5, 1)
    assert api.get(f"/api/v1{path}", {"operator": "other"}).json()["total"] == 0
    for wrong in ({"limit": "201"}, {"offset": "-1"}):
        assert api.get(f"/api/v1{path}", wrong).status_code == 422
    page = browser.get(path, {"operator": "price", "error": "LookupError"}).content.decode()
    assert "no price of 43 &lt;b&gt;" in page
    assert "in price" in page, "the traceback names the function"
    assert "1 to 5 of 5" in shown(page)


def test_a_page_has_twenty_dead_letters_and_links_to_the_next(
    browser: Client, tmp_path: Path, settings: Settings
) -> None:
    settings.WEIR_DATA_ROOTS = [tmp_path]
    job = job_with_letters("many", tmp_path / "letters", total=150)
    page = browser.get(f"/jobs/{job.pk}/dead-letters/").content.decode()
    assert "1 to 20 of 30" in shown(page)
    assert "?offset=20" in page
    last = browser.get(f"/jobs/{job.pk}/dead-letters/", {"offset": "20"}).content.decode()
    assert "21 to 30 of 30" in shown(last)
    assert 'id="page-older"' not in last


def test_only_files_of_the_job_below_a_data_root_are_read(
    job: Job, api: APIClient, tmp_path: Path, settings: Settings
) -> None:
    other = job_with_letters("other", tmp_path / "letters", total=10)
    path = f"/api/v1/jobs/{job.pk}/dead-letters/"
    assert api.get(path).json()["total"] == 10
    assert api.get(f"/api/v1/jobs/{other.pk}/dead-letters/").json()["total"] == 2
    outside = tmp_path.parent / f"{tmp_path.name}-outside.jsonl"
    (source,) = (tmp_path / "letters").glob(f"part-{job.pk}-*")
    outside.write_bytes(source.read_bytes())
    (tmp_path / "letters" / f"part-{job.pk}-9-x-0-1-1~1.jsonl").symlink_to(outside)
    (tmp_path / "letters" / f"part-{job.pk}-8-x-0-1-1~1.jsonl").write_text('{"operator": 1}\nno json\n')
    assert api.get(path).json()["total"] == 10
    settings.WEIR_DATA_ROOTS = [tmp_path / "elsewhere"]
    refused = api.get(path).json()
    assert (refused["total"], "not a folder that jobs may use" in refused["fault"]) == (0, True)


def test_a_request_reads_the_newest_bytes_only(job: Job, api: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters_of_job, "MAX_BYTES", 8_000)
    answer = api.get(f"/api/v1/jobs/{job.pk}/dead-letters/").json()
    assert 0 < answer["total"] < 10
    assert answer["is_cut"]
    assert "44" in answer["letters"][0]["row"], "the newest one is the last of the file"


def test_a_file_that_is_moved_during_a_listing_leaves_the_others(tmp_path: Path) -> None:
    (tmp_path / "part-1-1-x-0-1-1~1.jsonl").write_text("")
    moves = threading.Event()

    def move() -> None:
        number = 0
        while not moves.is_set():
            other, number = tmp_path / f"part-1-9-x-{number % 50}-1-1~1.jsonl", number + 1
            other.write_text("")
            other.rename(tmp_path / f"moved-{number % 50}")

    thread = threading.Thread(target=move)
    thread.start()
    try:
        times = [len(letters_of_job._file_times(tmp_path, "part-1-")) for _ in range(2_000)]
    finally:
        moves.set()
        thread.join()
    assert min(times) == 1
    assert max(times) > 1, "files were moved during the listings"


def test_a_file_that_cannot_be_read_leaves_the_others_and_is_named() -> None:
    results: list[letters_of_job.DeadLetters] = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        for number, mode in ((1, 0o644), (2, 0)):
            file = Path(folder, f"part-1-{number}-x-0-1-1~1.jsonl")
            file.write_text(letter("2020-01-01T00:00:00Z") + "\n")
            file.chmod(mode)

        def read() -> None:
            ctypes.CDLL(None).setfsuid(65_534)  # of this thread: root may read every file
            results.append(letters_of_job._read(DataRoots(), 1, (folder,), "", "", 0, 10))

        thread = threading.Thread(target=read)
        thread.start()
        thread.join()
    (listing,) = results
    assert listing.total == 1
    assert "part-1-2-x-0-1-1~1.jsonl: [Errno 13]" in listing.fault


def letter(at: str, row: str = "{}") -> str:
    return json.dumps({
        "operator": "price", "error": "KeyError", "message": "", "traceback": "", "at": at, "row": "", "arrow": row,
    })  # fmt: skip


def test_letters_are_sorted_by_time_and_large_or_foreign_ones_leave_the_others(
    job: Job, api: APIClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = f"/api/v1/jobs/{job.pk}/dead-letters/", tmp_path / "letters"
    monkeypatch.setattr(letters_of_job, "MAX_BYTES", 100_000)
    early, late = "2020-01-01T00:00:00Z", "2099-01-01T00:00:00Z"
    lines = [letter(late), letter(early), letter("2030-01-01T00:00:00")]
    (folder / f"part-{job.pk}-7-x-0-1-1~1.jsonl").write_text("\n".join(lines) + "\n")
    (folder / f"part-{job.pk}-8-x-0-1-1~1.jsonl").write_text(letter(late, "x" * 200_000) + "\n")
    answer = api.get(path).json()
    times = [each["at"] for each in answer["letters"]]
    assert len(times) == 12
    assert (times[0], times[-1]) == (late, early)
    assert times == sorted(times, reverse=True)
    assert answer["is_cut"]
    monkeypatch.setattr(letters_of_job, "MAX_FILES", 2)
    answer = api.get(path).json()
    assert (answer["total"], answer["is_cut"]) == (2, True)


def test_a_job_that_sets_no_rows_aside_has_an_empty_page(browser: Client, api: APIClient) -> None:
    job = rows.job()
    assert "No step of the latest version" in browser.get(f"/jobs/{job.pk}/dead-letters/").content.decode()
    assert api.get(f"/api/v1/jobs/{job.pk}/dead-letters/").json()["folders"] == []


def test_the_page_of_the_job_counts_rows_set_aside_and_links_to_them(job: Job, browser: Client) -> None:
    counters = {f"{SET_ASIDE_COUNTER}LookupError": 5, f"{SET_ASIDE_COUNTER}TypeError": 1}
    job.runs.update(live={"operators": {"price": {"counters": counters}}})
    page = browser.get(f"/jobs/{job.pk}/").content.decode()
    assert "5 rows set aside at price in this attempt: LookupError. 1 row set aside" in shown(page)
    assert f'href="/jobs/{job.pk}/dead-letters/"' in page
