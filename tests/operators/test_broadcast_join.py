"""The broadcast join against a dictionary."""

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import DataRejected, EnvironmentFailure, JobRejected
from runtime.operators.broadcast_join import (
    BUILD_INPUT,
    PROBE_INPUT,
    REFRESH_INPUT,
    REFRESHES,
    ROWS_COLUMN,
    VERSION_COLUMN,
    BroadcastJoin,
)
from tests.operators.harness import Harness

AIRLINES = pa.RecordBatch.from_pydict(
    {"carrier": ["AA", "UA", "DL"], "name": ["American", None, "Delta"], "x": [1, 2, 3]}
)
FLIGHTS = pa.RecordBatch.from_pydict({"carrier": ["UA", "AA", "ZZ", None, "AA"], "flight": [1, 2, 3, 4, 5]})


def joined(how: str, build: list[pa.RecordBatch], probe: pa.RecordBatch = FLIGHTS) -> Harness:
    harness = Harness(BroadcastJoin(["carrier"], ["name"], how))
    for batch in build:
        assert harness.process(batch, BUILD_INPUT) == []
    harness.process(probe, PROBE_INPUT)
    return harness


def test_an_inner_join_drops_rows_without_a_match() -> None:
    rows = joined("inner", [AIRLINES.slice(0, 1), AIRLINES.slice(1)]).out.rows()
    assert [(row["flight"], row["name"]) for row in rows] == [(1, None), (2, "American"), (5, "American")]


def test_a_left_join_keeps_every_row_in_order() -> None:
    rows = joined("left", [AIRLINES]).out.rows()
    assert [row["name"] for row in rows] == [None, "American", None, None, "American"]
    assert [row["flight"] for row in rows] == [1, 2, 3, 4, 5]


def test_an_empty_build_side_matches_nothing() -> None:
    assert joined("inner", []).out.batches == []
    assert [row["name"] for row in joined("left", []).out.rows()] == [None] * 5
    assert joined("inner", [AIRLINES.slice(0, 0)]).out.batches == []


def test_null_keys_match_nothing_even_each_other() -> None:
    build = pa.RecordBatch.from_pydict({"carrier": [None, None, "AA"], "name": ["?", "!", "American"]})
    assert [row["flight"] for row in joined("inner", [build]).out.rows()] == [2, 5]


def test_a_key_that_occurs_twice_in_the_build_side_is_named() -> None:
    with pytest.raises(DataRejected, match=r"\{'carrier': 'AA'\} twice"):
        joined("inner", [AIRLINES, AIRLINES.slice(0, 1)])


def test_key_encodings_need_not_agree_but_kinds_must() -> None:
    probe = FLIGHTS.set_column(0, "carrier", FLIGHTS["carrier"].dictionary_encode())
    assert len(joined("inner", [AIRLINES], probe).out.rows()) == 3
    with pytest.raises(JobRejected, match="carrier: the probe side has int64, the build side string"):
        joined("inner", [AIRLINES], pa.RecordBatch.from_pydict({"carrier": [1]}))


def test_the_build_side_survives_a_restore_without_being_read_again() -> None:
    first = joined("inner", [AIRLINES])
    snapshot = first.snapshot("chk-1")
    successor = Harness(
        BroadcastJoin(["carrier"], ["name"]), store=first.store, broadcast=snapshot, index=2, parallelism=3
    )
    assert [row["name"] for row in successor.process(FLIGHTS, PROBE_INPUT)] == [None, "American", "American"]


@given(
    st.dictionaries(st.tuples(st.integers(0, 5), st.sampled_from("abc")), st.integers(), max_size=10),
    st.lists(st.tuples(st.none() | st.integers(0, 6), st.none() | st.sampled_from("abcd")), min_size=1, max_size=30),
)
def test_several_keys_find_what_a_dictionary_finds(build: dict[Any, int], probe: list[Any]) -> None:
    harness = Harness(BroadcastJoin(["i", "s"], ["v"], "left"))
    if build:
        harness.process(
            pa.RecordBatch.from_arrays(
                [
                    pa.array([i for i, _ in build], pa.int8()),
                    pa.array([s for _, s in build], pa.string()),
                    pa.array([value % 1000 for value in build.values()], pa.int64()),
                ],
                names=["i", "s", "v"],
            ),
            BUILD_INPUT,
        )
    columns = [pa.array([i for i, _ in probe], pa.int64()), pa.array([s for _, s in probe], pa.large_string())]
    rows = harness.process(pa.RecordBatch.from_arrays(columns, names=["i", "s"]), PROBE_INPUT)
    assert [row["v"] for row in rows] == [build[key] % 1000 if key in build else None for key in probe]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BroadcastJoin(["a"], ["b"], "outer"), "how: must be 'inner' or 'left', not 'outer'"),
        (lambda: BroadcastJoin([], ["b"]), "on: a join needs"),
        (
            lambda: Harness(BroadcastJoin(["carrier"], ["nme"])).process(AIRLINES, BUILD_INPUT),
            "nme: the build side has only",
        ),
        (lambda: joined("inner", [AIRLINES], pa.record_batch({"flight": [1]})), "carrier: the probe side has only"),
    ],
)
def test_what_cannot_be_joined_is_refused(make: Any, message: str) -> None:
    with pytest.raises(JobRejected, match=message):
        make()


def test_a_column_of_both_sides_is_refused() -> None:
    harness = Harness(BroadcastJoin(["carrier"], ["name"]))
    harness.process(AIRLINES, BUILD_INPUT)
    with pytest.raises(JobRejected, match="name: both sides"):
        harness.process(FLIGHTS.append_column("name", FLIGHTS["carrier"]), PROBE_INPUT)


@pytest.mark.parametrize(
    ("build", "probe"),
    [
        (pa.array([2**64 - 1], pa.uint64()), pa.array([-1], pa.int64())),
        (pa.array([0.1], pa.float32()), pa.array([0.1], pa.float64())),
    ],
)
def test_keys_of_types_that_do_not_go_together_are_refused_and_not_equal(build: pa.Array, probe: pa.Array) -> None:
    """-1 and 2**64-1 have the same 64 bits: they were one key."""
    harness = Harness(BroadcastJoin(["k"], ["v"]))
    harness.process(pa.record_batch({"k": build, "v": [1]}), input=1)
    with pytest.raises(JobRejected, match=f"k: the probe side has {probe.type}, the build side {build.type}"):
        harness.process(pa.record_batch({"k": probe}))


@pytest.mark.parametrize("kind", [pa.decimal256(50, 2), pa.float16(), pa.month_day_nano_interval()])
def test_a_key_that_cannot_be_is_refused_by_name(kind: pa.DataType) -> None:
    with pytest.raises(JobRejected, match=r"k: a column of type .* cannot be a key"):
        Harness(BroadcastJoin(["k"], ["v"])).process(pa.record_batch({"k": pa.nulls(1, kind), "v": [1]}), input=1)


# ---------------------------------------------------------------- a build side that is refreshed


def version_rows(version: int, rows: dict[int, str], count: int | None) -> pa.RecordBatch:
    """Rows of a version as `VersionedTable` emits them; `count`: of the last row, None: it is not among them."""
    last = [] if count is None else [None]
    return pa.record_batch(
        {
            "id": pa.array([*rows, *last], pa.int64()),
            "label": pa.array([*rows.values(), *last], pa.string()),
            VERSION_COLUMN: pa.array([version] * (len(rows) + len(last)), pa.int64()),
            ROWS_COLUMN: pa.array([None] * len(rows) + ([] if count is None else [count]), pa.int64()),
        }
    )


def refreshed() -> BroadcastJoin:
    return BroadcastJoin(["id"], ["label"], "left", is_refreshed=True)


IDS = pa.record_batch({"id": pa.array(range(6), pa.int64())})


@given(seed=st.integers(0, 2**32))
def test_a_version_replaces_the_one_before_as_a_whole_across_snapshots_and_restores(seed: int) -> None:
    """Against a dictionary. A restore in the midst of a version is followed by the next, under the next number."""
    random_ = random.Random(seed)
    labels = dict.fromkeys(range(4), "1")
    harness = Harness(refreshed())
    first = pa.record_batch({"id": pa.array(labels, pa.int64()), "label": pa.array(labels.values(), pa.string())})
    harness.process(first, BUILD_INPUT)
    snapshot, stored = harness.snapshot("chk-0"), labels
    for version in range(2, 12):
        rows = {number: str(version) for number in random_.sample(range(6), random_.randrange(1, 7))}
        parts = [version_rows(version, {number: label}, None) for number, label in rows.items()]
        parts.append(version_rows(version, {}, len(rows)))
        if random_.random() < 0.5:  # as a host joins small batches
            parts = [pa.concat_batches(parts)]
        crashes_after = random_.choice([None, None, random_.randrange(len(parts))])
        for number, part in enumerate(parts):
            harness.process(part, REFRESH_INPUT)
            labels = rows if number == len(parts) - 1 else labels
            assert [row["label"] for row in harness.process(IDS)] == [labels.get(n) for n in range(6)]
            if random_.random() < 0.4:
                full = random_.random() < 0.2
                snapshot, stored = harness.snapshot(f"chk-{version}-{number}", full=full), labels
            if number == crashes_after:
                harness, labels = Harness(refreshed(), store=harness.store, broadcast=snapshot), stored
                assert [row["label"] for row in harness.process(IDS)] == [labels.get(n) for n in range(6)]
                break


def test_a_version_that_lacks_rows_replaces_nothing() -> None:
    harness = Harness(refreshed())
    harness.process(version_rows(2, {1: "a"}, None), REFRESH_INPUT)
    with pytest.raises(EnvironmentFailure, match="version 2 of a build side has 2 rows, but the join has 1 rows"):
        harness.process(version_rows(2, {}, 2), REFRESH_INPUT)
    assert [row["label"] for row in harness.process(IDS)] == [None] * 6


def test_a_version_is_used_once() -> None:
    harness = Harness(refreshed())
    harness.process(version_rows(2, {1: "a"}, 1), REFRESH_INPUT)
    assert harness.context.counters == {REFRESHES: 1}
    with pytest.raises(EnvironmentFailure, match=r"version 2 .* with version 2 in use"):
        harness.process(version_rows(2, {1: "a"}, 1), REFRESH_INPUT)


def test_a_version_of_other_columns_or_with_a_key_twice_is_refused() -> None:
    harness = Harness(refreshed())
    first = pa.record_batch({"id": pa.array([1], pa.int64()), "label": pa.array([7], pa.int64())})
    harness.process(first, BUILD_INPUT)
    with pytest.raises(DataRejected, match="version 2 of the build side has other columns: 'label' was int64"):
        harness.process(version_rows(2, {1: "a"}, 1), REFRESH_INPUT)
    twice = pa.concat_batches([version_rows(2, {1: "a"}, None), version_rows(2, {1: "b"}, 2)])
    with pytest.raises(DataRejected, match=r"has the key {'id': 1} twice"):
        Harness(refreshed()).process(twice, REFRESH_INPUT)


def test_a_join_that_is_no_longer_refreshed_keeps_the_version_in_use() -> None:
    first = Harness(refreshed())
    first.process(version_rows(2, {1: "a"}, 1), REFRESH_INPUT)
    join = BroadcastJoin(["id"], ["label"], "left")
    second = Harness(join, store=first.store, broadcast=first.snapshot("chk-1"))
    assert [row["label"] for row in second.process(IDS)] == [None, "a", None, None, None, None]
