"""Folders of Spark: none outlives its job master."""

from pathlib import Path

import pytest

from console.runs.scratch import scratch_folder


def test_a_killed_master_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM that was killed ran no shutdown hook: its folders stayed until the stack was started anew."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    left, other = tmp_path / "run-7-3" / "blockmgr-1", tmp_path / "run-70-4"
    for folder in (left, other):
        folder.mkdir(parents=True)
    with scratch_folder("run-7", 5) as variables:
        scratch = Path(variables["SPARK_LOCAL_DIRS"])
        assert scratch.parent == tmp_path
        (scratch / "spark-1" / "userFiles").mkdir(parents=True)
        assert not left.exists(), "of an older attempt, whose worker was killed too"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run-70-4"]


def test_several_scratch_disks_are_left_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    for disks in ("", "/disk1,/disk2"):
        monkeypatch.setenv("SPARK_LOCAL_DIRS", disks)
        with scratch_folder("run-7", 5) as added:
            assert added == {}
