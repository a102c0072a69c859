"""The rule on the code of a run."""

import pytest

from console.health.findings import Level
from runtime.core.job.lifecycle import RunState
from tests.console.health.facts_of import found

OTHER = "Run 5 executes code of shop 1.3; version 3 was defined with 1.2."


def test_other_code_is_worth_attention() -> None:
    finding = found("other-code", other_code=OTHER)
    assert finding is not None
    assert (finding.level, finding.sentence) == (Level.ATTENTION, OTHER)
    assert finding.remedy.startswith("Make a new version of the job")


@pytest.mark.parametrize(
    ("state", "other_code"), [(RunState.RUNNING, ""), (RunState.STOPPED, OTHER), (RunState.QUEUED, OTHER)]
)
def test_the_same_code_and_a_run_without_a_master_are_no_finding(state: RunState, other_code: str) -> None:
    assert found("other-code", state=state, other_code=other_code) is None
