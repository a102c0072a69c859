"""What the demo concludes from what it sees: flowing records, everything read, files that are not the job's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from examples.demo.live import END_OF_YEAR_MS, MAX_WATERMARK_LAG_MS, FlowDetector, InputEndDetector
from examples.demo.output import Output
from examples.demo.spark import RecordCounts, records_by_job


def run(at: int, records: int, token: int = 1, state: str = "running", watermark: int | None = None) -> dict[str, Any]:
    source = {"records_out": records, "watermark": watermark}
    live = {"operators": {"flights": source}, "counters": {"late_records": 0}}
    return {"id": 1, "state": state, "token": token, "live": live, "live_at": f"t{at}", "failure": None}


def test_records_flow_only_when_a_new_attempt_reports_twice_with_more() -> None:
    flow = FlowDetector(run(0, 500))
    assert not flow.flows(run(1, 600)), "the old attempt may still report"
    assert not flow.flows(run(1, 600, token=2)), "the last words of the old attempt under the new token"
    assert not flow.flows(run(2, 100, token=2, state="restarting"))
    assert not flow.flows(run(3, 100, token=2)), "one report may be of records read before a standstill"
    assert not flow.flows(run(3, 100, token=2))
    assert not flow.flows(run(4, 100, token=2))
    assert flow.flows(run(5, 101, token=2))


def test_a_second_failure_starts_the_count_again() -> None:
    flow = FlowDetector(run(0, 500))
    assert not flow.flows(run(1, 300, token=2))
    assert not flow.flows(run(2, 10, token=3)), "fewer records: another attempt has begun"
    assert flow.flows(run(3, 20, token=3))


def test_everything_is_read_when_nothing_comes_for_two_whole_checkpoints_near_the_end() -> None:
    end = END_OF_YEAR_MS - MAX_WATERMARK_LAG_MS
    detector = InputEndDetector()
    assert not detector.is_complete(run(0, 10, watermark=end), 5)
    assert not detector.is_complete(run(1, 11, watermark=end), 7)
    assert not detector.is_complete(run(2, 11, watermark=end), 9), "checkpoint 8 may have been under way"
    assert not detector.is_complete(run(3, 11, watermark=end - 1), 10), "a subtask stands still in November"
    assert not detector.is_complete(run(3, 11, watermark=None), 10)
    assert not detector.is_complete(run(3, 11, watermark=end, state="restarting"), 10)
    assert detector.is_complete(run(4, 11, watermark=end), 10)


def filled(folder: Path) -> Output:
    pq.write_table(pa.table({"n": [1, 2, 3]}), folder / "part-4-7-parquet-0-1-0.parquet")
    (folder / ".weir-4-7-parquet-0-1.inprogress").write_bytes(b"half")
    return Output(folder, "4")


def test_the_output_is_what_readers_see(tmp_path: Path) -> None:
    output = filled(tmp_path)
    output.add_foreign_files()
    assert [path.name for path in output.visible_files()] == ["part-4-7-parquet-0-1-0.parquet"]
    assert [path.name for path in output.hidden_files()] == [".weir-4-7-parquet-0-1.inprogress"]
    assert (output.rows(), output.misnamed_files(), output.changed_foreign_files()) == (3, [], [])
    assert pq.read_table(tmp_path).num_rows == 3, "strangers add no rows for a reader of the whole folder"


def test_a_removed_and_a_changed_stranger_are_noticed(tmp_path: Path) -> None:
    output = filled(tmp_path)
    output.add_foreign_files()
    (tmp_path / "_notes.txt").write_text("changed")
    (tmp_path / ".weir-41-1-parquet-0-0.pending").unlink()
    assert set(output.changed_foreign_files()) == {"_notes.txt", ".weir-41-1-parquet-0-0.pending"}


def test_a_pending_file_is_a_leftover_unless_a_savepoint_names_it(tmp_path: Path) -> None:
    output, storage = filled(tmp_path), tmp_path / "_storage"
    (tmp_path / ".weir-4-7-parquet-0-2.pending").write_bytes(b"prepared for a savepoint")
    (storage / "savepoint-9-7").mkdir(parents=True)
    (storage / "savepoint-9-7" / "manifest.json").write_text('{"pending": ".weir-4-7-parquet-0-2.pending"}')
    assert output.leftovers(str(storage)) == [".weir-4-7-parquet-0-1.inprogress"]


def test_a_file_of_another_job_is_foreign(tmp_path: Path) -> None:
    output = filled(tmp_path)
    pq.write_table(pa.table({"n": [1]}), tmp_path / "part-42-7-parquet-0-1-0.parquet")
    assert output.misnamed_files() == ["part-42-7-parquet-0-1-0.parquet"]


def task_end(stage: int, read: int, written: int) -> dict[str, Any]:
    metrics = {"Input Metrics": {"Records Read": read}, "Output Metrics": {"Records Written": written}}
    return {"Event": "SparkListenerTaskEnd", "Stage ID": stage, "Task Metrics": metrics}


def job_start(stages: list[int], description: str) -> dict[str, Any]:
    properties = {"spark.job.description": description}
    return {"Event": "SparkListenerJobStart", "Stage IDs": stages, "Properties": properties}


def test_records_of_an_application_are_added_up_by_job(tmp_path: Path) -> None:
    """Of the application that is asked for, in one file or in parts; a line that is half written ends the reading."""
    prefix = [{"Event": "SparkListenerApplicationStart", "App Name": "ours"}, job_start([0, 1], "input weather")]
    parts = [[*prefix, task_end(0, 7, 0), task_end(0, 5, 0)], [task_end(1, 0, 11), job_start([2], "input history")]]
    (tmp_path / "eventlog_v2_a").mkdir()
    for number, events in enumerate(parts, 1):
        text = "\n".join(map(json.dumps, events))
        half = "" if number == 1 else '{"Event": "SparkLis'
        (tmp_path / "eventlog_v2_a" / f"events_{number}_a").write_text(f"{text}\n{half}")
    (tmp_path / "eventlog_v2_a" / "appstatus_a").touch()
    other = [{"Event": "SparkListenerApplicationStart", "App Name": "other"}, job_start([0], "x"), task_end(0, 9, 9)]
    (tmp_path / "local-2").write_text("\n".join(map(json.dumps, other)))
    assert records_by_job(tmp_path, "ours") == {"input weather": RecordCounts(12, 11)}
    assert records_by_job(tmp_path / "nowhere", "ours") == {}


def test_rows_of_two_outputs_are_compared_with_their_number(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    pq.write_table(pa.table({"n": [1, 1, 2]}), tmp_path / "one" / "part-1-1-out-0-1-0.parquet")
    pq.write_table(pa.table({"n": [2, 1, 2]}), tmp_path / "other" / "part-2-1-out-0-1-0.parquet")
    counts, other = Output(tmp_path / "one", "1").rows_by_value(), Output(tmp_path / "other", "2").rows_by_value()
    assert (list(counts - other), list(other - counts)) == (["{'n': 1}"], ["{'n': 2}"])
