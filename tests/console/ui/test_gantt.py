"""The Gantt chart of a checkpoint."""

from hypothesis import given
from hypothesis import strategies as st

from console.checkpoints.lanes import Lane, lanes_of
from console.ui.gantt import MAX_LANES, MAX_TICKS, Gantt, gantt
from runtime.core.checkpoint.acknowledgements import PHASES, SubtaskProgress, as_columns
from runtime.core.snapshot.manifest import SnapshotTimings
from tests.core.builders import subtask

TIMINGS = SnapshotTimings(start_delay_ms=10, alignment_ms=20, pre_barrier_ms=0, sync_ms=5, async_ms=15)


def lanes(count: int = 2, missing: int = 0) -> tuple[Lane, ...]:
    """Subtasks of a single operator; the later, the slower."""
    progress = [SubtaskProgress(subtask(f"a/{i}"), 50 + i, TIMINGS, 7) for i in range(count)]
    return lanes_of(
        as_columns([*progress, *(SubtaskProgress(subtask(f"a/{count + i}")) for i in range(missing))]), ["a"]
    )


def drawn(*args: tuple[Lane, ...], took_ms: float = 100, completed: bool = True, only: str = "") -> Gantt:
    chart = gantt(tuple(lane for each in args for lane in each), {"a": "A"}, took_ms, completed=completed, only=only)
    assert chart is not None
    return chart


def test_phases_follow_each_other_on_the_time_since_the_trigger() -> None:
    (group,) = drawn(lanes(1)).groups
    bars = [(bar.phase, bar.x, bar.width) for bar in group.lanes[0].bars]
    assert bars == [
        ("start_delay", "0.00%", "10.00%"), ("alignment", "10.00%", "20.00%"), ("sync", "30.00%", "5.00%"),
        ("async", "35.00%", "15.00%"),
    ]  # fmt: skip
    assert group.lanes[0].about == "start delay 10 ms, alignment 20 ms, sync 5.0 ms, async 15 ms"
    assert group.lanes[0].marks.startswith(
        '<rect class="phase start_delay" x="0.00%" width="10.00%" y="3" height="10"/><rect class="phase alignment" '
    )


def test_the_commit_begins_with_the_last_acknowledgement_and_ends_with_the_record() -> None:
    chart = drawn(lanes(2), took_ms=100)
    assert chart.commit is not None
    assert (chart.commit.x, chart.commit.width, chart.commit_ms) == ("51.00%", "49.00%", 49)
    assert drawn(lanes(2), completed=False).commit is None


def test_a_missing_acknowledgement_is_drawn_as_missing_over_the_whole_time() -> None:
    (group,) = drawn(lanes(1, missing=1), completed=False).groups
    (bar,) = group.lanes[1].bars
    assert (bar.phase, bar.width, group.lanes[1].about) == ("missing", "100.00%", "no acknowledgement")
    assert group.lanes[1].marks == '<rect class="missing" x="0.00%" width="100.00%" y="3" height="10"/>'


def test_a_line_stands_at_each_tick() -> None:
    chart = drawn(lanes(1), took_ms=100)
    assert [tick.x for tick in chart.ticks] == ["0.00%", "50.00%", "100.00%"]
    lines = [f'<line x1="{x}" x2="{x}" y1="0" y2="100%"/>' for x in ("0.00%", "50.00%", "100.00%")]
    assert chart.grid == "".join(lines)


def test_many_subtasks_show_the_slowest_of_each_operator_and_one_operator_all_of_its_own() -> None:
    many = [
        Lane(operator=uid, index=i, at_ms=i, phases_ms=(0.0,) * len(PHASES), written_bytes=0, state_bytes=0)
        for uid in "abcd"
        for i in range(100)
    ]
    chart = drawn(tuple(many))
    assert [(len(group.lanes), group.hidden) for group in chart.groups] == [(MAX_LANES // 4, 100 - MAX_LANES // 4)] * 4
    assert [each.lane.index for each in chart.groups[0].lanes] == list(range(100 - MAX_LANES // 4, 100))
    (group,) = drawn(tuple(many), only="b").groups
    assert (group.uid, len(group.lanes), group.hidden) == ("b", 100, 0)
    assert len(drawn(tuple(many), only="no such operator").groups) == 4


def test_without_acknowledgements_there_is_no_chart() -> None:
    assert gantt((), {}, 5.0, completed=True) is None


@given(st.floats(min_value=0, max_value=10**10), st.integers(0, 10**9))
def test_axis_and_bars_stay_within_the_chart(took_ms: float, start_ms: int) -> None:
    """Clocks of hosts differ: phases may exceed the duration."""
    late = SubtaskProgress(subtask("a/0"), 40, SnapshotTimings(start_delay_ms=start_ms, async_ms=9), 7)
    chart = drawn(lanes_of(as_columns([late]), ["a"]), took_ms=took_ms)
    assert 2 <= len(chart.ticks) <= MAX_TICKS
    assert chart.ticks[-1].x == "100.00%", "the end is labelled"
    ends = [float(bar.x[:-1]) + float(bar.width[:-1]) for group in chart.groups for bar in group.lanes[0].bars]
    assert all(end <= 100.02 for end in ends)
