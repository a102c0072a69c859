"""A restore drill on the whole stack: a checkpoint of a running job, restored beside it on Spark, then removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.word_count import PATIENCE_S, WordCount
from tests.stack.checkout import Checkout
from tests.waiting import until
from weir.control.console import Refused

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_drill_proves_a_checkpoint_and_leaves_job_and_output_alone(checkout: Checkout, tmp_path: Path) -> None:
    words = WordCount(checkout, tmp_path, "drilled words", parallelism=1)
    until(words.is_exact, PATIENCE_S)
    pinned = words.api.checkpoints(words.job)[-1]
    words.api.post(f"jobs/{words.job}/operations/", {"kind": "pin", "params": {"checkpoint": pinned["id"]}})
    before = {path.name for path in words.output.glob("[!._]*")}
    run, params = words.run["id"], {"checkpoint": pinned["id"], "parallelism": 1}
    operation = words.api.post(f"jobs/{words.job}/operations/", {"kind": "drill", "params": params})

    until(lambda: words.api.get(f"operations/{operation['id']}/")["state"] in ("succeeded", "failed"), PATIENCE_S)
    ended = words.api.get(f"operations/{operation['id']}/")
    assert (ended["state"], ended["error"]) == ("succeeded", None)
    result = ended["result"]
    assert result["restored_bytes"] > 0
    assert 0 < result["start_ms"] <= result["first_checkpoint_ms"]
    clone = words.api.get(f"jobs/{result['job']}/")
    assert clone["archived_at"] is not None
    assert not (checkout.var / "storage" / str(result["job"])).exists()
    assert {path.name for path in words.output.glob("[!._]*")} == before, "the clone has written nothing"
    operation = words.api.post(
        f"jobs/{words.job}/operations/", {"kind": "verify", "params": {"checkpoint": pinned["id"]}}
    )
    until(lambda: words.api.get(f"operations/{operation['id']}/")["state"] in ("succeeded", "failed"), PATIENCE_S)
    assert words.api.get(f"operations/{operation['id']}/")["result"]["is_complete"], "a worker has checked the files"
    words.feed(5)
    until(words.is_exact, PATIENCE_S)
    assert words.run["id"] == run
    print(result)  # noqa: T201 - the times of this machine, for a reader of the log


def test_a_checkpoint_is_restored_under_refuse_once_it_has_been_reviewed(checkout: Checkout, tmp_path: Path) -> None:
    """A real savepoint: refused before its review, restored on Spark after it, and the words are exact."""
    words = WordCount(checkout, tmp_path, "reviewed words", parallelism=1)
    until(words.is_exact, PATIENCE_S)
    words.api.operate(words.job, "stop", {}, PATIENCE_S)
    words.api.patch(f"jobs/{words.job}/", {"review_policy": "refuse"})
    savepoint = words.api.checkpoints(words.job)[-1]
    params = {"checkpoint": savepoint["id"], "parallelism": 2}
    stopped = words.run["id"]
    with pytest.raises(Refused, match="review"):
        words.api.operate(words.job, "restore", params, PATIENCE_S)
    assert words.run["id"] == stopped, "nothing was started"
    outcome = {"checkpoint": savepoint["id"], "state": "reviewed", "note": "counted by hand"}
    words.api.operate(words.job, "review", outcome, PATIENCE_S)
    reviewed = words.api.checkpoints(words.job)[-1]
    assert (reviewed["number"], reviewed["review_state"]) == (savepoint["number"], "reviewed")
    words.feed(5)
    words.api.operate(words.job, "restore", params, PATIENCE_S)
    until(words.is_exact, PATIENCE_S)
    assert words.restored_number() == savepoint["number"]
    words.api.operate(words.job, "drain", {}, PATIENCE_S)
    assert words.is_exact()
