"""The effects of an operation before it is confirmed, in words and in numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from console import formats
from console.checkpoints.selectors import RunProgress
from console.jobs.models import Run
from console.metrics import live as metrics
from console.metrics.selectors import newest_in_flight_bytes
from console.operations.expected_times import expected_duration
from console.operations.models import OperationKind
from runtime.core.job.lifecycle import FLOWING_STATES

#: Result of an operator -> its term, its fate in a drain, and its fate in a savepoint or a stop.
_OPEN_RESULTS: Final = {
    "windows": ("Open windows", "emitted early, one per key", "stay in the savepoint, one per key"),
    "panes": ("Panes of open windows", "their windows are emitted early", "stay in the savepoint"),
    "sessions": ("Open sessions", "emitted early", "stay in the savepoint"),
    "joined": ("Rows in open window joins", "their pairs are emitted early", "stay in the savepoint"),
    "timers": ("Timers", "fire early", "stay in the savepoint"),
    "rows": ("Rows not committed", "committed with the savepoint", "committed with the savepoint"),
}


@dataclass(frozen=True, slots=True)
class Number:
    """A line of the preview: `value` with its unit, and where it comes from.

    Args:
        key: name of `amount` for programs, with its unit unless it is a count.
    """

    key: str
    amount: float
    term: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """The effects of an operation in sentences and `numbers`, and a gentler alternative."""

    title: str
    sentences: tuple[str, ...]
    numbers: tuple[Number, ...] = ()
    instead: str
    gentler: str = ""  #: the kind of operation that `instead` names, "" if it names none
    dangerous: bool
    verb: str = ""  #: label of the button, if it is not the title
    restores: bool = False  #: the page offers a restore first
    repeats: bool = False  #: repeated output must be accepted
    saves: bool = False  #: takes a savepoint, which can be named and pinned
    run: int | None = None  #: the request is for this run, and refused for a later run


def savepoint_numbers(
    kind: str, run: Run, reached: RunProgress, *, commits: bool, fires_windows: bool
) -> Iterator[Number]:
    """Of a savepoint, stop or drain. `commits`: the output up to it, which the next checkpoint does otherwise."""
    newest = reached.newest
    if expected := expected_duration(run.job_id, kind, newest):
        yield Number("expected_ms", expected.median_ms, "Expected time", str(expected), expected.note)
    if newest is not None and newest.size_bytes is not None:
        note = f"all state, as of {newest}: a savepoint shares no file with checkpoints"
        yield Number("written_bytes", newest.size_bytes, "To write", str(formats.size(newest.size_bytes)), note)
    yield from _open_results(run, commits=commits, fires_windows=fires_windows)
    in_flight = newest_in_flight_bytes(run)
    if in_flight is not None:
        note = "processed before the savepoint completes"
        yield Number("in_flight_bytes", in_flight, "In flight", str(formats.size(in_flight)), note)


def fired_early(run: Run) -> str:
    """The open results of a run that a drain emits early, such as "open windows: 11 198"; "" if none are known."""
    if run.version.is_batch or run.run_state not in FLOWING_STATES:
        return ""
    results = _by_result(run)
    totals = {result: sum(count for _, count in parts) for result, parts in results.items() if result != "rows"}
    return ", ".join(
        f"{term.lower()}: {formats.count(totals[result])}"
        for result, (term, *_) in _OPEN_RESULTS.items()
        if result in totals
    )


def _open_results(run: Run, *, commits: bool, fires_windows: bool) -> Iterator[Number]:
    """The results that are not final yet, by operator."""
    results = _by_result(run)
    for result, (term, in_drain, otherwise) in _OPEN_RESULTS.items():
        if parts := results.get(result):
            if result == "rows" and not commits:
                continue
            note = in_drain if fires_windows else otherwise
            is_single = len(parts) == 1  # its number is the total
            where = ", ".join(name if is_single else f"{name} {formats.count(count)}" for name, count in parts)
            total = sum(count for _, count in parts)
            yield Number(result, total, term, formats.count(total), f"{note}: {where}")


def _by_result(run: Run) -> Mapping[str, list[tuple[str, int]]]:
    """Operators and their numbers of open results, by result, as of the last report of the job master."""
    names = {o["uid"]: o["name"] for o in (run.version.graph or {}).get("operators", ())}
    results: dict[str, list[tuple[str, int]]] = {}
    for uid, operator in metrics.parse(run.live, run.live_at).operators.items():
        for result, count in operator.open_results.items():
            if count and result in _OPEN_RESULTS:
                results.setdefault(result, []).append((names.get(uid, uid), count))
    return results


def cancel_numbers(run: Run, reached: RunProgress, replayed: int | None) -> Iterator[Number]:
    since = f"since {reached.continuable}" if reached.continuable else "since the run began"
    if replayed is not None:
        note = f"read {since}; a restore reads them again"
        yield Number("replayed_records", replayed, "Records not covered", f"about {formats.compact(replayed)}", note)
    if expected := expected_duration(run.job_id, OperationKind.RESTORE):
        time = str(expected) if expected.is_least else f"about {expected}"
        yield Number("restore_ms", expected.shown_ms, "Time of a later restore", time, expected.note)
