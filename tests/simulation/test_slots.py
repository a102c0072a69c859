"""A simulated slot and its connection: whatever else is lost, the master hears that the slot is gone."""

from random import Random

import pytest

from runtime.core.job.ids import OperatorId, SubtaskId
from runtime.simulation.faults import Faults
from runtime.simulation.slots import ReportStarted, Slot, SlotLost
from runtime.simulation.world import World


@pytest.mark.parametrize("seed", range(8))
def test_a_slot_that_crashes_after_its_connection_is_still_missed(seed: int) -> None:
    faults = Faults(str(seed))
    slot = Slot(World(Random(seed), faults))
    faults.scripted_names.append("lose_message")
    slot.send_report(SubtaskId(OperatorId("a"), 0), ReportStarted())
    slot.crash()
    assert slot.up.is_ready
    assert slot.up.pop() == SlotLost()
