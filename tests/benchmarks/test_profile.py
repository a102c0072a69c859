"""Profiles: samples of the slots' loops by part and function, and processes by their command line."""

import pytest

from benchmarks.profile import LOOPS, MASTER, SAMPLING, SLOTS, kind_of, profile_of, render

LOOP = 'process 7:"python -m runtime.launch.spark_daemon";<module> (a.py:1);_loop (runtime/slot/slot.py:90)'
STACKS = [
    (
        f"{LOOP};Task.step (runtime/task/task.py:9);Window.process (runtime/operators/windows/base.py:5);"
        "take (pyarrow/compute.py:7) 6"
    ),
    f"{LOOP};Window.process (runtime/operators/windows/base.py:8) 2",
    f"{LOOP};add (benchmarks/fraud.py:44) 1",
    f"{LOOP};load (runtime/task/task.py:9);_find_and_load (<frozen importlib._bootstrap>:1) 1",
    'process 7:"python";_Receiver.messages (runtime/io/socket_exchange.py:3) 50',
]


def test_time_in_a_library_belongs_to_its_caller_and_waiting_threads_are_left_out() -> None:
    profile = profile_of(STACKS)
    assert profile.by_part == {"runtime/operators/windows": 8, "functions of the workload": 1, "imports of modules": 1}
    assert profile.by_function["Window.process (runtime/operators/windows/base.py)"] == 8
    assert profile.samples == 10


def test_times_are_per_row_of_the_loops() -> None:
    text = render(1_000, {LOOPS: 0.001, "Postgres": 0.002}, profile_of(STACKS))
    rows = {line[:70].strip(): line[70:].split() for line in text.splitlines()}
    assert rows["Postgres"] == ["2,000", "ns"]
    assert rows["runtime/operators/windows"] == ["80.0%", "800", "ns"]


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("/usr/bin/java -cp x --conf spark.python.daemon.module=runtime.launch.spark_daemon", "JVM of Spark"),
        ("python -m runtime.launch.spark_daemon pyspark.worker", SLOTS),
        ("python -m benchmarks.systems.weir {}", MASTER),
        ("py-spy record --pid 1 -- benchmarks.systems", SAMPLING),
        ("postgres: checkpointer", "Postgres"),
        ("sh -c true", "others"),
    ],
)
def test_processes_are_known_by_their_command_line(command: str, kind: str) -> None:
    assert kind_of(command.split()) == kind
