"""Subtasks that keep their state while their inputs restart: exact, and planted bugs show."""

from collections.abc import Collection

import pytest

from runtime.core.attempt import failover_regions
from runtime.core.job.ids import ChannelId
from runtime.core.restore import state_assignment
from runtime.core.snapshot.row_numbers import ProcessedRows, RepeatedRows, RowNumbers, SplitCuts
from runtime.ports import NumberedRows
from runtime.simulation import simulation
from runtime.simulation.cluster import SimulatedTask
from runtime.simulation.model import ModelReader
from runtime.simulation.simulation import simulate
from runtime.task.task import Task
from tests.simulation.planted_bugs import Plant, find
from tests.simulation.test_kept_slots import ENDS, failing

LOSSES = {"crash_slot": 0.001, "lose_message": 0.02}  #: lost slots run on for a while


@pytest.fixture(autouse=True)
def numbered_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "APART", 0.0)
    monkeypatch.setattr(simulation, "NUMBERED", 1.0)


def test_jobs_are_exact_while_subtasks_keep_their_state() -> None:
    """S4-44, S4-45, S4-46: failure after failure, also before the first checkpoint of an attempt."""
    worlds = [simulate(seed, failing(**ENDS) if seed % 2 else failing()).world for seed in range(10)]
    assert sum(world.kept_subtasks for world in worlds) > 30
    assert sum(world.repeated_rows for world in worlds) > 100


# ---------------------------------------------------------------- planted bugs


def number_anew_after_a_restore(patch: pytest.MonkeyPatch) -> None:
    """The numbers of a source are not those of the positions in its input."""

    def numbered(reader: ModelReader) -> list[NumberedRows]:
        split, numbers = reader._last_rows
        first = vars(reader).setdefault("first_numbers", {}).setdefault(split, numbers[0])
        return [NumberedRows(split, numbers - first + 1)]

    patch.setattr(ModelReader, "numbered_rows", property(numbered))


def keep_receivers_of_rows_without_numbers(patch: pytest.MonkeyPatch) -> None:
    """A survivor behind an unsafe edge."""
    patch.setattr(failover_regions, "_unsafe_reason", lambda *args: None)


def deliver_messages_of_an_older_attempt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimulatedTask, "belongs_to", lambda task, attempt: True)


def keep_slots_after_a_checkpoint_with_rows_in_flight(patch: pytest.MonkeyPatch) -> None:
    """Restarted senders do not repeat these rows, and a subtask that keeps its state drops its queue."""
    patch.setattr(state_assignment, "has_rows_in_flight", lambda operator: False)


def process_messages_in_flight(patch: pytest.MonkeyPatch) -> None:
    """A survivor processes the messages in its queue, which its senders send again."""
    restart = SimulatedTask.restart_inputs

    def restarted(task: SimulatedTask, channels: Collection[ChannelId]) -> list[ProcessedRows]:
        waiting = {channel: list(task._inputs[channel]._messages) for channel in channels}
        processed = restart(task, channels)
        for channel, messages in waiting.items():
            for message in messages:
                task.deliver(channel, message)
        return processed

    patch.setattr(SimulatedTask, "restart_inputs", restarted)


def take_checkpoints_while_rows_are_repeated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Task, "_repeats_rows", False)
    patch.setattr(RepeatedRows, "check", lambda repeated: None)


def cut_no_batch(patch: pytest.MonkeyPatch) -> None:
    def pieces(cuts: SplitCuts, split: str, numbers: RowNumbers) -> list[tuple[int, int, int]]:
        cuts._ends.clear()
        return [(0, len(numbers), int(numbers[-1]))]

    patch.setattr(SplitCuts, "pieces", pieces)
    patch.setattr(RepeatedRows, "check", lambda repeated: None)


def send_repeated_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RepeatedRows, "drops", lambda *args: False)
    patch.setattr(RepeatedRows, "check", lambda repeated: None)


#: By planted bug, the seed at which the search begins.
PLANTED: dict[Plant, int] = {
    number_anew_after_a_restore: 0,
    keep_receivers_of_rows_without_numbers: 12,
    deliver_messages_of_an_older_attempt: 39,
    process_messages_in_flight: 0,
    take_checkpoints_while_rows_are_repeated: 0,
    cut_no_batch: 0,
    send_repeated_rows: 0,
    keep_slots_after_a_checkpoint_with_rows_in_flight: 0,
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_the_simulator_finds_a_planted_bug(plant: Plant) -> None:
    """S4-45, S4-46."""
    faults = LOSSES if plant is deliver_messages_of_an_older_attempt else {}
    overtaking = float(plant is keep_slots_after_a_checkpoint_with_rows_in_flight)
    find(plant, lambda: failing(**faults), PLANTED[plant], overtaking)
