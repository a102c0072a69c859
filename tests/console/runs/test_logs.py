"""Logs of job masters and slots: their lines, parts and secrets, and files that are none of them."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from django.http import QueryDict
from pytest_django.fixtures import Settings

from console.runs import logs
from console.runs.logs import (
    LOG_LINES,
    LogFilter,
    LogLine,
    LogPart,
    LogSecrets,
    log_part,
    log_tail,
    parse_lines,
    plain_log,
)
from runtime.access.redaction import redact

pytestmark = pytest.mark.django_db
SECRET = {"type": "object", "properties": {"password": {"type": "string", "writeOnly": True}}}
PARAMS = {"password": "a-river-runs"}
EVENT = '{"slot": 1, "detail": "", "event": "slot lost", "level": "warning", "run": 7, '
EVENT += '"timestamp": "2026-11-25T23:58:33.477888Z"}'
JVM = "26/11/25 23:55:57 ERROR TaskSetManager: Task 0 failed"
NO_DATE = "26/13/45 23:55:57 WARN Odd: no date"


@pytest.fixture(autouse=True)
def _folder_of_logs(settings: Settings, tmp_path: Path) -> None:
    settings.WEIR_LOGS = tmp_path


def test_events_jvm_lines_and_tracebacks_become_lines_with_time_and_level() -> None:
    lines = list(parse_lines([EVENT, JVM, "  at java.lang.Thread", "{not json", NO_DATE]))
    assert lines == [
        LogLine(datetime(2026, 11, 25, 23, 58, 33, 477888, UTC), "warning", "slot lost  slot=1"),
        LogLine(datetime(2026, 11, 25, 23, 55, 57, tzinfo=UTC), "error", "TaskSetManager: Task 0 failed"),
        LogLine(None, "error", "  at java.lang.Thread"),
        LogLine(None, "error", "{not json"),
        LogLine(None, "error", NO_DATE),
    ]


def test_the_log_ends_with_its_newest_lines_without_secrets(tmp_path: Path) -> None:
    log = tmp_path / "run-1.log"
    log.write_text("".join(f"line {n}\n" for n in range(90_000)) + "url=jdbc:x?password=a-river-runs\n")
    lines = log_tail(log, LogSecrets("", PARAMS, SECRET))
    assert lines is not None
    assert len(lines) == LOG_LINES
    assert lines[-2].text == "line 89999"
    assert "a-river-runs" not in lines[-1].text
    assert log_tail(tmp_path / "none.log", LogSecrets("", {}, {})) is None


def test_a_file_that_a_slot_has_replaced_is_not_read(settings: Settings, tmp_path: Path) -> None:
    """A check of the path is too early: the slot may replace the file before it is opened."""
    settings.WEIR_LOGS = tmp_path / "logs"
    settings.WEIR_LOGS.mkdir()
    (tmp_path / "secret").write_text("of the console\n")
    log = settings.WEIR_LOGS / "run-1.log"
    log.symlink_to(tmp_path / "secret")
    assert plain_log(log, LogSecrets("", {}, {})) is None
    log.unlink()
    os.mkfifo(log)
    assert plain_log(log, LogSecrets("", {}, {})) is None


def test_a_log_masks_the_secrets_that_the_parameters_refer_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library prints an address past Weir's log."""
    log = tmp_path / "run-1.log"
    log.write_text("no way to postgresql://app:fish-and-chips@db\n")
    params = {"url": "postgresql://app:${secret:orders}@db"}
    assert "fish-and-chips" in (plain_log(log, LogSecrets("", params, {})) or ""), "this host does not have the secret"
    monkeypatch.setenv("WEIR_SECRET_ORDERS", "fish-and-chips")
    assert plain_log(log, LogSecrets("", params, {})) == "no way to postgresql://app:********@db\n"
    assert [line.text for line in log_tail(log, LogSecrets("", params, {})) or ()] == [
        "no way to postgresql://app:********@db"
    ]
    other = {"menu": "fish-and-chips"}
    assert "fish-and-chips" in (plain_log(log, LogSecrets("", other, {})) or ""), "it is no secret of another job"


@pytest.mark.parametrize("secret", ["a-river-runs", 'p"ss\\w0rd', "first line\nsecond line"])
def test_no_search_finds_a_secret(tmp_path: Path, secret: str) -> None:
    """A hit would show a secret character by character. The job master writes JSON, which escapes characters."""
    log = tmp_path / "run-1.log"
    log.write_text(f"{json.dumps({'event': secret, 'timestamp': '2026-11-25T23:58:33Z'})}\nplain {secret}\n")
    params = {"password": secret}
    for query in (secret, secret[:3], json.dumps(secret)[1:-1]):
        assert log_tail(log, LogSecrets("", params, SECRET), LogFilter(text=query)) == ()
    text = plain_log(log, LogSecrets("", params, SECRET)) or ""
    assert secret not in text
    assert json.dumps(secret)[1:-1] not in text


def test_lines_are_chosen_by_level_and_text(tmp_path: Path) -> None:
    log = tmp_path / "run-1.log"
    start = "26/11/22 20:53:11 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform..."
    log.write_text(f"plain\n{EVENT}\n{start}\n{JVM}\n")

    def texts(query: str) -> list[str]:
        return [line.text for line in log_tail(log, LogSecrets("", {}, {}), LogFilter.of(QueryDict(query))) or ()]

    assert texts("level=warning") == ["slot lost  slot=1", "TaskSetManager: Task 0 failed"]
    assert texts("level=error") == ["TaskSetManager: Task 0 failed"]
    assert texts("text=SLOT") == ["slot lost  slot=1"]
    assert len(texts("level=unheard-of")) == 3


def test_a_log_that_became_a_link_after_its_check_is_not_read(tmp_path: Path, settings: Settings) -> None:
    link, other = tmp_path / "own", tmp_path / "other"
    other.write_text("of another job\n")
    link.symlink_to(other)
    settings.WEIR_LOGS, settings.WEIR_SLOT_LOGS = tmp_path, (tmp_path,)
    assert plain_log(other, LogSecrets("", {}, {})) == "of another job\n"
    assert plain_log(link, LogSecrets("", {}, {})) is None


def read_part(log: Path, begin: int | None, limit: int, params: dict[str, str] = PARAMS) -> LogPart:
    part = log_part(log, LogSecrets("", params, SECRET), begin, limit, is_whole=True)
    assert part is not None
    return part


def test_who_follows_a_log_reads_each_line_once(tmp_path: Path) -> None:
    """Also lines whose end was not written yet. A line longer than a part is left out."""
    log, end, lines = tmp_path / "run-1.log", 0, list[str]()
    log.write_text("".join(f"line {number}\n" for number in range(30)) + f"{'long' * 20}\nshört\nnot yet")

    def follow() -> None:
        nonlocal end
        while (part := read_part(log, end, 50)).end > end:
            lines.extend(part.text_lines)
            end = part.end

    follow()
    assert lines == [*(f"line {number}" for number in range(30)), "shört"]
    with log.open("a") as file:
        file.write(" written\n")
    follow()
    assert lines[31:] == ["not yet written"]
    assert end == log.stat().st_size
    assert read_part(log, 10**12, 50) == read_part(log, end, 50), "beyond the end, as after the end"


def test_a_plain_line_has_the_level_of_a_line_before_the_part(tmp_path: Path) -> None:
    log = tmp_path / "run-1.log"
    log.write_text(f"{JVM}\n  at java.lang.Thread\n")
    part = read_part(log, len(JVM) + 1, 1_000)
    assert part.lines(LogFilter("error")) == [LogLine(None, "error", "  at java.lang.Thread")]


SECRET_LINES = "-- begin\nkey one\nkey two\n-- end"


@pytest.mark.parametrize("context", [len(SECRET_LINES), 64 * 1024])
@pytest.mark.parametrize("copies", [1, 2])
def test_no_part_shows_a_piece_of_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: int, copies: int
) -> None:
    """A key has many lines: an edge between these would leave two pieces that no mask matches.

    With the smaller context it is longer than the text that is searched for the edges.
    """
    monkeypatch.setattr(logs, "_CONTEXT_BYTES", context)
    log = tmp_path / "run-1.log"
    log.write_text(f"before\nkey: {SECRET_LINES}\nafter\nmore\n" * copies)
    size = log.stat().st_size
    texts = set[str]()
    for begin in (*range(size), None):
        for limit in range(1, size + 1, copies**3):  # all of them where they are few
            texts.update(read_part(log, begin, limit, {"password": SECRET_LINES}).text_lines)
    assert texts == {"before", "key: ********", "after", "more"}


def test_a_large_part_is_masked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was masked as a whole for each of its edges, too: a part of a log in the middle three times."""
    log, line, masked = tmp_path / "run-1.log", f"{'x' * 99}\n", list[int]()

    def count(text: str, *arguments: Any) -> str:
        masked.append(len(text))
        return redact(text, *arguments)

    monkeypatch.setattr(logs, "redact", count)
    log.write_text(line * 60_000)
    part = read_part(log, 1_000_000, 4_000_000)
    assert (len(part.text_lines), part.end - part.begin) == (40_000, 4_000_000)
    assert sum(masked) < 4_000_000 + 10 * 64 * 1024
