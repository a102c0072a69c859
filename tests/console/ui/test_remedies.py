"""What the page of a failed run suggests, by the code of its failure."""

import ast
from pathlib import Path

import pytest
from django.test import Client

from console.checkpoints.models import Checkpoint
from console.jobs.models import JobVersion, Run
from console.operations.models import OperationKind
from console.ui.remedies import REMEDIES, Remedy, remedy_of, suggest_remedy
from tests.console.ui import blocks, every_page, rows

ROOT = Path(__file__).resolve().parents[3]
BATCH = {"graph": {**rows.GRAPH, "mode": "batch"}}


FOLDERS = ("runtime", "spark_jobs", "examples", "console/jobs", "console/runs")


@pytest.fixture(scope="module")
def codes() -> tuple[set[str], set[str]]:
    """The codes of `JobRejected` in the sources, and other literals that are called a code.

    A fixture: all workers import this module, and to parse the sources takes seconds.
    """
    refusals, others = set[str](), set[str]()
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                refusals |= _text(node.args[0]) if name == "JobRejected" and node.args else set()
                others |= _text(node.args[0]) if name in ("StageError", "StageFailure") and node.args else set()
                texts = {text for word in node.keywords if word.arg == "code" for text in _text(word.value)}
                (refusals if name == "RestoreProblem" else others).update(texts)
            elif isinstance(node, ast.Dict):
                pairs = zip(node.keys, node.values, strict=True)
                others |= {text for key, value in pairs if key and _text(key) == {"code"} for text in _text(value)}
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(
                    getattr(target, "id", "") in ("INPUT_CHANGED", "INPUT_FAILED", "OTHER_FORMAT", "PROCESSING_TIME")
                    for target in targets
                ):
                    refusals |= _text(node.value)
    return refusals, others


def _text(node: ast.expr) -> set[str]:
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else set()


def unsaved(*, restored: bool = False, batch: bool = False) -> tuple[Run, Checkpoint, JobVersion]:
    """A run of version 1 that failed before it completed a checkpoint, one of an earlier run, and version 1."""
    version = JobVersion(pk=1, number=1, state="ready", graph=BATCH["graph"] if batch else rows.GRAPH)
    run = Run(pk=5, version=version, state="failed", restore_checkpoint_id=9 if restored else None)
    return run, Checkpoint(pk=9, run_id=4, number=9), version


def test_the_sources_have_the_codes_of_the_table(codes: tuple[set[str], set[str]]) -> None:
    refusals, others = codes
    assert {"missing-table", "unbounded-in-batch", "unmapped-state", "input-changed"} <= refusals
    assert {"master-died", "stage-died", "no-slots", "commit-failed", "corrupt-state"} <= others
    assert REMEDIES.keys() - refusals - others == {"attempt-failed", "batch-failed", "final", "unknown"}


def test_a_refusal_is_never_mended_by_an_older_checkpoint(codes: tuple[set[str], set[str]]) -> None:
    """A run that was refused before anything started: what it was refused for comes first."""
    run, newest, version = unsaved()
    for code in codes[0]:
        remedy = suggest_remedy(run, code, newest, version)
        assert remedy.remedy is not Remedy.AGAIN, code
        assert remedy.act is not OperationKind.RESTORE or remedy.remedy is Remedy.CHECKPOINT, code
        if remedy.remedy is Remedy.VERSION:
            assert remedy.act is None, f"{code}: a new version comes first"


def test_a_run_in_batch_is_never_restored(codes: tuple[set[str], set[str]]) -> None:
    run, newest, version = unsaved(batch=True)
    for code in codes[0] | codes[1] | REMEDIES.keys():
        assert suggest_remedy(run, code, newest, version).act is not OperationKind.RESTORE, code


@pytest.mark.parametrize("code", ["attempt-failed", "master-died", "stage-died", "spark-unavailable", "commit-failed"])
def test_what_may_be_gone_is_gone_on_from(code: str) -> None:
    run, newest, version = unsaved()
    assert suggest_remedy(run, code, newest, version).act is OperationKind.RESTORE
    assert suggest_remedy(run, code, None, version).act is OperationKind.START


def test_a_restore_that_was_refused_is_asked_for_again() -> None:
    run, newest, version = unsaved(restored=True)
    assert suggest_remedy(run, "missing-table", newest, version).act is OperationKind.RESTORE
    assert suggest_remedy(run, "unmapped-state", newest, version).checkpoint is newest
    newer = JobVersion(pk=2, number=2, state="ready")
    assert suggest_remedy(run, "unmapped-state", newest, newer).act is OperationKind.RESTORE


def test_a_start_that_was_refused_follows_the_newer_version() -> None:
    run, newest, _ = unsaved()
    assert suggest_remedy(run, "bad-path", newest, JobVersion(pk=2, number=2, state="rejected")).act is None
    assert suggest_remedy(run, "bad-path", newest, JobVersion(pk=2, number=2, state="ready")).act is OperationKind.START


SAID = {
    Remedy.AGAIN: "Restore from checkpoint 7, taken",
    Remedy.OUTSIDE: "Correct the fault that the message names, then start the job again.",
    Remedy.CODE: "Correct the code that is installed on the hosts, or the input: a version does not contain the code. "
    "Then start it.",
    Remedy.VERSION: "Create a new version, or correct the input that the message names. Then start it.",
    Remedy.CHECKPOINT: "Restore a checkpoint or savepoint other than the one in the message.",
    Remedy.EMPTY: "A restore would fail again: start the job from empty state.",
}
_CODES = ("master-died", "missing-table", "final", "unknown-column", "corrupt-state", "input-changed")
CODES = dict(zip(SAID, _CODES, strict=True))


@pytest.mark.django_db
@pytest.mark.parametrize("remedy", Remedy)
def test_the_page_says_what_mends_the_failure(at_console: Client, remedy: Remedy) -> None:
    """The run before has left a checkpoint. The one that failed was a start."""
    code, job = CODES[remedy], rows.job()
    rows.checkpoint(rows.run(job, "stopped"), 7)
    rows.run(job, "failed", failure={"code": code, "message": "no such thing"})
    assert remedy_of(code) is remedy
    response = at_console.get(f"/jobs/{job.pk}/")
    assert SAID[remedy] in blocks.text(response)
    acts = blocks.live(response)["acts"]
    assert ('primary" id="do-restore"' in acts) == (remedy in (Remedy.AGAIN, Remedy.CHECKPOINT))


@pytest.mark.django_db
def test_an_error_of_the_code_leads_to_the_line_that_raised_it(at_console: Client) -> None:
    """S1: the page advised a new version, which does not contain the code."""
    run = rows.run(rows.job(), "failed", failure=every_page.FAILURE)
    rows.checkpoint(run, 7)
    response = at_console.get(f"/jobs/{run.job_id}/")
    said = blocks.text(response)
    assert "Not restarted: a restart would repeat this error" in said
    assert "Correct /srv/jobs/delays.py, line 41, the code that is installed on the hosts" in said
    assert "Then restore from checkpoint 7." in said
    assert "new version" not in blocks.live(response)["notices"]


@pytest.mark.django_db
def test_a_run_in_batch_that_failed_is_started_again(at_console: Client) -> None:
    job = rows.job(version=BATCH)
    rows.run(job, "failed", failure={"code": "batch-failed", "message": "there is no folder /in"})
    response = at_console.get(f"/jobs/{job.pk}/")
    assert (
        "A run in BATCH always starts from the beginning: start the job again once the cause is resolved."
        in blocks.text(response)
    )
    assert 'primary" id="do-start"' in blocks.live(response)["acts"]
