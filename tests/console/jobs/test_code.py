"""The code of a run beside that of its version: a sentence where they differ, also among the facts of health."""

from typing import Any

import pytest
from django.utils import timezone

from console.health.collection import collect
from console.jobs.code import other_code
from console.jobs.models import Run
from tests.console.ui import rows

DEFINED = {"package": "shop", "version": "1.2", "graph": "a"}


def run_with(code: dict[str, Any] | None) -> Run:
    return rows.run(rows.job(version={"graph": {**rows.GRAPH, "code": DEFINED}}), code=code)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"version": "1.3"}, "executes code of shop 1.3; version 1 was defined with 1.2."),
        ({"version": "1.3", "graph": "b"}, "shop 1.3; version 1 was defined with 1.2. The graphs differ."),
        ({"package": "shop2"}, "executes code of shop2 1.2; version 1 was defined with shop 1.2."),
        ({"digest": "ab" * 32}, "executes code of shop 1.2 (abababababab); version 1 was defined with 1.2."),
        ({"graph": "b"}, "executes code of shop 1.2 whose graph differs from the graph of version 1."),
    ],
)
def test_other_code_is_a_finding_that_names_both_packages(changes: dict[str, str], sentence: str) -> None:
    run = run_with(DEFINED | changes)
    message = other_code(run)
    assert message.startswith(f"Run {run.pk} ")
    assert message.endswith(sentence)
    assert collect([run], timezone.now())[run.pk].other_code == message


@pytest.mark.django_db
@pytest.mark.parametrize("code", [DEFINED, None])
def test_the_same_code_and_a_run_without_a_job_master_are_no_finding(code: Any) -> None:
    assert other_code(run_with(code)) == ""
