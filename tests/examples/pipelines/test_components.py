"""A real loop: connected components over files that keep coming, exact through failures, stops and the end."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import networkx as nx
import pyarrow as pa
import pytest

from examples.pipelines import components
from runtime.clock import SystemClock
from runtime.core.job.ids import Token
from runtime.core.job.lifecycle import RunState
from runtime.core.job.restart_strategy import FixedDelay
from runtime.core.job.settings import CoordinatorSettings, RetentionPolicy
from runtime.dataflow.pipelines import PipelineContext
from runtime.dataflow.plan import CompiledJob
from runtime.io.filesystem import FileStore
from runtime.io.memory.run_store import MemoryRunStore
from runtime.launch.local import run_local
from runtime.launch.spark import SparkLauncher
from runtime.master.config import MasterConfig
from runtime.master.job_master import JobMaster
from runtime.operators.functions.batch import MapBatches
from tests.jobs.gated import Bomb
from tests.jobs.live import FAST, Run, running, with_operator
from tests.jobs.numbers import committed

Edge = tuple[int, int]


def edges(seed: int, vertices: int, count: int) -> list[Edge]:
    """A few large components and many small ones: labels have far to go in a long chain."""
    rng = Random(seed)
    chain = [(n, n + 1) for n in range(vertices // 2, vertices - 1)]
    rng.shuffle(chain)
    return chain + [(rng.randrange(vertices), rng.randrange(vertices)) for _ in range(count)]


def write(folder: Path, name: str, some: list[Edge]) -> None:
    """Atomically, as whoever feeds a watched folder must."""
    folder.mkdir(exist_ok=True)
    text = "source,target\n" + "".join(f"{a},{b}\n" for a, b in some)
    (folder / f".{name}").write_text(text)
    (folder / f".{name}").rename(folder / name)


def write_all(folder: Path, some: list[Edge], prefix: str = "edges", files: int = 6) -> None:
    for number in range(files):
        write(folder, f"{prefix}-{number}.csv", some[number::files])


def answer(some: list[Edge]) -> dict[int, int]:
    """By another hand."""
    return {vertex: min(members) for members in nx.connected_components(nx.Graph(some)) for vertex in members}


def found(output: Path) -> dict[int, int]:
    """The last label of each vertex. Labels fall, so none may be written twice."""
    rows = [(row["vertex"], row["component"]) for row in committed(output)]
    assert len(set(rows)) == len(rows), "an update was written twice"
    labels: dict[int, int] = {}
    for vertex, label in rows:
        labels[vertex] = min(label, labels.get(vertex, label))
    return labels


def job(folder: Path, parallelism: int, bounded: bool = False) -> CompiledJob:
    params = components.ComponentsParams(
        edges_dir=str(folder / "edges"), output_dir=str(folder / "out"), bounded=bounded
    )
    return components.build(params, PipelineContext("")).compile(parallelism)


def in_the_loop(run: Run) -> bool:
    """Whether some checkpoint of this attempt holds messages that were on their way."""
    manifests = [m for m in run.manifests if m.token == run.records.token]
    return any(s.feedback for m in manifests for s in m.operators["loop"].subtasks.values())


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_the_components_of_a_bounded_graph(tmp_path: Path, parallelism: int) -> None:
    """S4-41: the job ends once nothing goes round, and every label is the smallest."""
    some = edges(seed=1, vertices=60, count=25)
    write_all(tmp_path / "edges", some)
    params = components.ComponentsParams(
        edges_dir=str(tmp_path / "edges"), output_dir=str(tmp_path / "out"), bounded=True
    )
    flow = components.build(params, PipelineContext(""))
    run_local(flow, parallelism=parallelism, storage=str(tmp_path / "state"), settings=FAST)
    assert found(tmp_path / "out") == answer(some)


@pytest.mark.slow  # it waits for a checkpoint that meets messages on their way
def test_a_failure_with_messages_in_the_loop_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """S4-30, S4-43."""
    some, bomb = edges(seed=2, vertices=1_200, count=60), Bomb()
    compiled = with_operator(
        job(tmp_path, 2), "messages", lambda: MapBatches(lambda batch: components.messages(bomb(batch)))
    )
    write_all(tmp_path / "edges", some, files=30)
    with running(compiled, tmp_path / "state", restart=FixedDelay(attempts=5, delay_ms=0)) as run:
        run.wait_for(lambda: in_the_loop(run))
        bomb.arm()
        run.wait_for(lambda: run.records.token > 1)
        run.wait_for(lambda: found(tmp_path / "out") == answer(some))
        run.end("drain")
    assert found(tmp_path / "out") == answer(some)


@pytest.mark.slow  # it waits for a checkpoint that meets messages on their way
@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3)])
def test_a_stopped_job_goes_on_at_another_parallelism_over_a_graph_that_has_grown(
    tmp_path: Path, before: int, after: int
) -> None:
    """S4-30: what was going round goes on going round; new edges join old components."""
    some, additions = edges(seed=3, vertices=1_200, count=50), [(0, 1_199), (7, 150), (5_000, 5)]
    write_all(tmp_path / "edges", some, files=20)
    with running(job(tmp_path, before), tmp_path / "state") as run:
        run.wait_for(lambda: in_the_loop(run))
        savepoint = run.end("stop")
    write_all(tmp_path / "edges", additions, "more", files=1)
    with running(job(tmp_path, after), tmp_path / "state", MemoryRunStore(Token(9), restore_from=savepoint)) as run:
        run.wait_for(lambda: found(tmp_path / "out") == answer(some + additions))
        run.end("drain")
    assert found(tmp_path / "out") == answer(some + additions)


def test_a_drain_waits_until_all_that_was_read_is_settled(tmp_path: Path) -> None:
    """S4-41: the savepoint comes after the last message, so the output is the answer without further waiting."""
    some = edges(seed=4, vertices=200, count=30)
    write_all(tmp_path / "edges", some)
    with running(job(tmp_path, 2), tmp_path / "state") as run:
        run.wait_for(lambda: run.operator("edges").get("records_out") == len(some))
        run.end("drain")
    assert not any(s.feedback for s in run.manifests[-1].operators["loop"].subtasks.values())
    assert found(tmp_path / "out") == answer(some)


# ---------------------------------------------------------------- on Spark


@contextmanager
def on_spark(compiled: CompiledJob, folder: Path, records: MemoryRunStore) -> Iterator[Run]:
    launcher = SparkLauncher("components", "local[4]")
    config = MasterConfig(
        job_id="1",
        token=records.token,
        job=compiled,
        storage=str(folder / "state"),
        coordinator=CoordinatorSettings(interval_ms=200, min_pause_ms=20),
        restart=FixedDelay(attempts=5, delay_ms=50),
        retention=RetentionPolicy(1_000),
    )
    master = JobMaster(config, records, FileStore(str(folder / "state")), launcher, SystemClock())
    run = Run(master, records, threading.Thread(target=lambda: run.exit.append(master.run()), daemon=True), [])
    run.thread.start()
    try:
        yield run
    finally:
        if run.thread.is_alive():
            run.ask("cancel")
            run.join()
        launcher.close()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_slot_that_is_killed_while_labels_go_round_leaves_the_answer_exact(tmp_path: Path) -> None:
    """S4-30, S4-41, S4-42: on a real Spark, with SIGKILL."""
    some = edges(seed=5, vertices=1_500, count=150)
    write_all(tmp_path / "edges", some, files=60)
    with on_spark(job(tmp_path, 2), tmp_path, MemoryRunStore()) as run:
        run.wait_for(lambda: in_the_loop(run) and len(run.records.live.get("slots", ())) == 2)
        os.kill(int(run.records.live["slots"][1]["pid"]), signal.SIGKILL)
        run.wait_for(lambda: run.records.token > 1)
        run.wait_for(lambda: found(tmp_path / "out") == answer(some))
        run.end("drain")
    assert run.records.state is RunState.FINISHED
    assert found(tmp_path / "out") == answer(some)


def test_each_edge_is_a_message_to_either_end() -> None:
    batch = pa.RecordBatch.from_pydict({"source": [1, 2], "target": [3, 4]}, schema=components.EDGE_SCHEMA)
    messages = [(row["vertex"], row["value"], row["links"]) for row in components.to_both_ends(batch).to_pylist()]
    assert messages == [(1, 3, True), (2, 4, True), (3, 1, True), (4, 2, True)]
