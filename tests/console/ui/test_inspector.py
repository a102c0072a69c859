"""The panel beside the graph: subtasks with the skewed first, failures, state; of the job without a choice."""

import re
from datetime import datetime
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from console.jobs.models import Attempt, Run
from console.metrics.selectors import SUBTASK_NUMBERS, SubtaskHistory
from console.ui.inspector import subtask_lines
from tests.console.ui import blocks, numbers, rows

AJAX = {"HX-Request": "true"}


@pytest.fixture
def running(db: None) -> Run:
    run = rows.run(rows.job(version={"parallelism": 4}))
    rows.attempts(run)
    rows.history(run)
    numbers.record(run, hours=0.2, fine_minutes=5)
    operators = rows.live()["operators"]
    operators["window"]["counters"] = {"late_records": 31}
    Run.objects.filter(pk=run.pk).update(live=rows.live(operators=operators))
    return run


def test_the_skewed_come_first_on_one_scale() -> None:
    at = datetime.fromisoformat("2026-11-23T12:00:00Z")
    values: dict[str, list[list[Any]]] = {name: [[0.5] * 4] * 3 for name in SUBTASK_NUMBERS}
    values["records_in"] = [[100, 100, 100, 0], [100, 100, 100, 0], [110, 120, 500, 70]]
    values["watermark"] = [[None] * 4] * 2 + [[at.timestamp() * 1000] * 4]
    lines = subtask_lines(SubtaskHistory([at] * 3, [[0, 1, 2, 3]] * 3, values), "records_in")
    assert [line.index for line in lines] == [2, 3, 0, 1]
    assert [line.skew for line in lines] == ["2.5 × mean", "0.3 × mean", "", ""]
    assert str(lines[0].rate) == "100 /s"
    assert lines[0].spark == "M0.5 160l1 0 1-160", "the highest rate of all subtasks is at the top"
    assert str(lines[0].watermark) == "lag 5.0 s", "when the interval of 5 s ended, not at present"
    assert subtask_lines(SubtaskHistory([], [], {}), "records_in") == ()


def test_a_chosen_operator_shows_its_subtasks_counters_and_state(at_console: Client, running: Run) -> None:
    page = at_console.get(f"/jobs/{running.job_id}/?node=window")
    said = blocks.text(page)
    contents = blocks.live(page)
    assert "sessions all operators" in said
    assert re.findall(r'<th scope="row" class="number mono">(\d)</th>', contents["subtasks"]) == ["3", "0", "1", "2"]
    assert "Late records" in contents["subtasks"]
    assert "31" in contents["subtasks"]
    assert "in checkpoint" in contents["states"]
    assert 'id="node-5" href="?node=window#graph-head" aria-current="true"' in page.content.decode()


def test_without_a_choice_the_panel_is_of_the_job(at_console: Client, running: Run) -> None:
    for node in ("", "nothing", "<b>", "\0"):
        page = at_console.get(f"/jobs/{running.job_id}/", {"node": node})
        contents = blocks.live(page)
        assert "All operators Choose an operator in the graph." in blocks.text(page)
        assert "subtasks" not in contents
        assert "slot 1 was lost: the other side closed the connection" in contents["causes"]
        lost = running.attempts.get(outcome="failed").detail
        assert lost
        assert (
            f'Log of slot <span class="q">1</span>: <span class="mono">{lost["slot_log"]}</span>' in contents["causes"]
        )
        assert contents["states"].index("sessions") < contents["states"].index("join airlines"), "the largest first"


def test_causes_are_sent_again_only_when_an_attempt_fails(at_console: Client, running: Run) -> None:
    """An open traceback stays open while the numbers of subtasks change."""
    path = f"/jobs/{running.job_id}/?node=window"
    digests = " ".join(f"{name}={digest}" for name, digest in blocks.digests(at_console.get(path)).items())
    Attempt.objects.filter(outcome="running").update(outcome="failed", ended_at=timezone.now(), reason="no memory",
                                                     detail={"operator": "window", "message": "no memory"})  # fmt: skip
    changed = at_console.get(path, headers={**AJAX, "X-Blocks": digests})
    assert "causes" in blocks.swapped(changed)
    assert "states" not in blocks.swapped(changed)
    assert "no memory" in blocks.live(changed)["causes"]
