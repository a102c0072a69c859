"""The page of a run: why it ended, its attempts, how its start went, and the snapshot that it came from."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

from console.accounts.refusals import Refused
from console.checkpoints.models import large_columns
from console.checkpoints.storage import job_uri, load_savepoint
from console.checkpoints.timed_reads import read_in_time
from console.jobs.attempts import with_numbers
from console.jobs.code import code_of_run, other_code
from console.jobs.failures import FailureDetail, failure_detail, with_recorded_failures
from console.jobs.models import Attempt, Run
from console.jobs.operator_names import operator_names
from console.operations.models import Operation
from console.operations.restores.effects import restore_target
from console.pages.run_ends import end_of_run, ending_operation
from console.pages.start_phases import StartPhase, restart_phases, start_moments, start_phases
from console.runs.logs import LogFilter, LogLine, LogSecrets, SlotLog, log_file, log_tail
from runtime.access.redaction import Schema
from runtime.core.restore.mapping import OperatorMatch, mapping_report
from runtime.io.store import is_absolute

MAX_ATTEMPTS: Final = 50  #: newest attempts on the page
_MAX_FOLDERS: Final = 100  #: restored folders whose operators a process remembers
_IN_RESTORE: Final = {
    OperatorMatch.MATCHED: "restored",
    OperatorMatch.NEW: "began with empty state: the snapshot does not have it",
    OperatorMatch.FINISHED: "had finished, and was not started again",
    OperatorMatch.DROPPED: "left out: the version does not have it",
}


@dataclass(frozen=True, slots=True)
class RestoredOperator:
    """An operator of the snapshot or of the version, and its part in the restore."""

    name: str
    fate: str
    state_bytes: int | None


@dataclass(frozen=True, slots=True)
class ShownAttempt:
    """An attempt with its `number`, its failure, and the phases of its launch if it was a restart."""

    row: Any
    failure: FailureDetail
    launch: tuple[StartPhase, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    end: str  #: why the run ended, in a sentence; '' while it runs
    code: str  #: package and version; "" if they are not recorded
    other_code: str  #: how the code differs from that of the version, in a sentence; "" if it does not
    ended_by: Operation | None
    attempts: tuple[ShownAttempt, ...]  #: newest first
    start: tuple[StartPhase, ...]
    restored: tuple[RestoredOperator, ...]
    log: tuple[LogLine, ...] | None  #: None: this host does not have it
    log_file: str
    slots: tuple[SlotLog, ...]
    slot: SlotLog | None  #: whose log is shown; None: that of the job master
    log_host: str  #: of the worker that supervises the run; "" if none does
    wanted: LogFilter

    @property
    def has_expectation(self) -> bool:
        """Whether an earlier run gives a phase of the start an expected time."""
        return any(phase.expected for phase in self.start)


def run_view(run: Run, schema: Schema, log_filter: LogFilter, logs: tuple[SlotLog, ...], slot: int | None) -> RunView:
    attempts = with_numbers(with_recorded_failures(Attempt.objects.filter(run=run)))
    related = attempts.select_related("restored_checkpoint")
    rows = related.defer("detail", *large_columns("restored_checkpoint"))[:MAX_ATTEMPTS]
    ended_by = ending_operation(run)
    slot_log = next((each for each in logs if each.index == slot and each.file), None)
    file = slot_log.file if slot_log and slot_log.file else log_file(run)
    return RunView(
        end=end_of_run(run, ended_by, schema),
        code=str(code_of_run(run) or ""),
        other_code=other_code(run),
        ended_by=ended_by,
        attempts=tuple(
            ShownAttempt(
                attempt,
                failure_detail(attempt.recorded, run.version, schema, attempt.reason),
                restart_phases(attempt) if attempt.number > 1 else (),
            )
            for attempt in rows
        ),
        start=start_phases(*start_moments(run)),
        restored=restored_operators(run),
        log=log_tail(file, LogSecrets.of(run), log_filter),
        log_file=str(file),
        slots=logs,
        slot=slot_log,
        log_host=run.lease_owner.partition(":")[0],
        wanted=log_filter,
    )


# ---------------------------------------------------------------- the snapshot that the run came from


def restored_operators(run: Run) -> tuple[RestoredOperator, ...]:
    """The operators of the run's version and of the restored snapshot; none if its folder cannot be read."""
    if run.restore_checkpoint is None:
        try:
            return _restored_from_folder(run.pk, run.restore_path) if run.restore_path else ()
        except Refused:
            return ()
    names = {o["uid"]: o["name"] for o in (run.version.graph or {}).get("operators", ())}
    stored: Mapping[str, Mapping[str, Any]] = {row["uid"]: row for row in run.restore_checkpoint.operators}
    operators = []
    for uid, name in names.items():
        row = stored.get(uid)
        if row is None:
            operators.append(RestoredOperator(name, _IN_RESTORE[OperatorMatch.NEW], None))
        elif row.get("finished") == "finished":
            operators.append(RestoredOperator(name, _IN_RESTORE[OperatorMatch.FINISHED], None))
        else:
            operators.append(RestoredOperator(name, _IN_RESTORE[OperatorMatch.MATCHED], row.get("state_bytes")))
    left_out = [row for uid, row in stored.items() if uid not in names]
    operators += [RestoredOperator(row["uid"], _IN_RESTORE[OperatorMatch.DROPPED], row.get("state_bytes"))
                  for row in left_out]  # fmt: skip
    return tuple(operators)


@lru_cache(maxsize=_MAX_FOLDERS)
def _restored_from_folder(pk: int, path: str) -> tuple[RestoredOperator, ...]:
    """As `restored_operators`, by the manifest in the folder, which does not change. `pk`: of the run.

    Raises:
        Refused: the folder is not allowed any more, is gone, or is damaged, or the storage does not answer in time.
    """
    run = Run.objects.select_related("version").get(pk=pk)
    place = path if is_absolute(path) else f"{job_uri(run.job_id)}/{path}"
    _, manifest = read_in_time(("restored folder", pk), partial(load_savepoint, place))
    mapping = mapping_report(manifest, restore_target(run.version, run.parallelism), str(run.job_id))
    names = operator_names(run.version.graph)
    return tuple(
        RestoredOperator(
            names.get(row.uid, row.uid),
            _IN_RESTORE.get(row.fate, row.reason),
            row.state_bytes if row.fate in (OperatorMatch.MATCHED, OperatorMatch.DROPPED) else None,
        )
        for row in mapping.operators
    )
