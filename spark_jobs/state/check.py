"""The check of all states, and rows in flight, of a checkpoint against their proofs (`runtime.core.snapshot.proofs`).

A file with the right checksum may still lack rows: it may have been written so. The proof is that of the live table.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TextIO

from runtime.core.job.key_groups import key_group_range
from runtime.core.snapshot.manifest import RowsInFlight
from runtime.core.snapshot.proofs import total_proof
from runtime.errors import CorruptState
from runtime.task.rows_in_flight import check_rows
from spark_jobs.state.rows import (
    OpenedCheckpoint,
    find_state,
    has_rows,
    open_checkpoint,
    subtask_files,
)

EQUAL: Final = "verified"  #: the result of a state that does not differ from its proof
_MAX_CHECK_S: Final = 60.0  #: the check ends with the first state after it
_PROGRESS_S: Final = 1.0


def answer_check(checkpoint: str, skip: int, answers: TextIO) -> dict[str, Any]:
    """The results of the states of the checkpoint in folder `checkpoint`, from the state `skip` on.

    Each is operator, state, number of entries, and `EQUAL` or the difference. After a minute, the rest is left to the
    next call: `is_whole` is false.

    Raises:
        CorruptState: the manifest cannot be read.
        OSError: the storage cannot be read.
    """
    opened = open_checkpoint(checkpoint)
    names = _states(opened)
    results: list[list[Any]] = []
    began, due = time.monotonic(), 0.0

    def report() -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + _PROGRESS_S
            answers.write(json.dumps({"progress": [skip + len(results) + 1, len(names)]}) + "\n")
            answers.flush()

    for operator, name in names[skip:]:
        report()
        results.append([operator, name, _entries(opened, operator, name), _check(opened, operator, name, report)])
        if time.monotonic() - began > _MAX_CHECK_S:
            break
    return {"states": results, "is_whole": skip + len(results) == len(names)}


def _states(opened: OpenedCheckpoint) -> list[tuple[str, str]]:
    """The states that have files or a proof, by operator and name."""
    return sorted({
        (uid, name)
        for uid, operator in opened.manifest.operators.items()
        for snapshot in operator.subtasks.values()
        for name in (
            *snapshot.keyed, *snapshot.broadcast, *snapshot.proofs, *(rows.name for rows in snapshot.in_flight),
        )
    })  # fmt: skip


def _rows_in_flight(opened: OpenedCheckpoint, operator: str, name: str) -> list[RowsInFlight]:
    """The rows in flight with this name; empty: it is the name of a state."""
    snapshots = opened.manifest.operators[operator].subtasks.values()
    return [rows for snapshot in snapshots for rows in snapshot.in_flight if rows.name == name]


def _entries(opened: OpenedCheckpoint, operator: str, name: str) -> int:
    """The number of entries by the proof. Each subtask has a copy of broadcast state."""
    if rows := _rows_in_flight(opened, operator, name):
        return total_proof(each.proof for each in rows).entries
    counts = [total_proof([files.proof]).entries for files in subtask_files(opened, operator, name)]
    snapshots = opened.manifest.operators[operator].subtasks.values()
    return max(counts) if any(name in snapshot.broadcast for snapshot in snapshots) else sum(counts)


def _check(opened: OpenedCheckpoint, operator: str, name: str, on_part: Callable[[], None]) -> str:
    try:
        if rows := _rows_in_flight(opened, operator, name):
            check_rows(opened.store, rows, opened.manifest.max_parallelism)
            return EQUAL
        if not has_rows(opened, operator, name):
            return EQUAL
        files = subtask_files(opened, operator, name)
        state = replace(find_state(opened, operator, name), files=files)  # all copies of broadcast state
        for index in range(state.partition_count):
            for _ in state.rows(key_group_range(index, state.key_groups, state.partition_count)):
                on_part()
    except CorruptState as error:
        return str(error)
    return EQUAL
