"""The pace of polls by the load of the process."""

from contextlib import ExitStack

import pytest
from django.test import Client

from console.ui.live.pace import MAX_PAUSE_MS, MIN_PAUSE_MS, OVERLOAD_PAUSE_MS, PACE, Pace

THREADS = 16


class Machine:
    """A clock, and the processor time of a process with a load."""

    def __init__(self) -> None:
        self.now = 100.0
        self.used_s = 7.0

    def run(self, seconds: float, load: float) -> None:
        self.now += seconds
        self.used_s += seconds * load

    def pace(self) -> Pace:
        return Pace(THREADS, lambda: self.now, lambda: self.used_s)


@pytest.mark.parametrize(
    ("load", "pause_ms"),
    [(0.0, MIN_PAUSE_MS), (0.25, MIN_PAUSE_MS), (0.5, 3_000), (0.75, MAX_PAUSE_MS), (1.6, MAX_PAUSE_MS)],
)
def test_the_pause_grows_with_the_load_and_is_at_most_four_seconds(load: float, pause_ms: int) -> None:
    machine = Machine()
    pace = machine.pace()
    for _ in range(40):
        machine.run(1.0, load)
        last_ms = pace.pause_ms()
    assert last_ms == pytest.approx(pause_ms, abs=1)


@pytest.mark.parametrize(
    ("busy", "pause_ms"), [(4, MIN_PAUSE_MS), (8, 3_000), (12, MAX_PAUSE_MS), (14, 6_000), (16, OVERLOAD_PAUSE_MS)]
)
def test_a_process_whose_threads_are_busy_is_not_calm_on_a_contended_machine(busy: int, pause_ms: int) -> None:
    """It got a tenth of a processor, so 100 tabs kept the shortest pause while each answer took seconds."""
    machine = Machine()
    pace = machine.pace()
    with ExitStack() as requests:
        for _ in range(busy):
            requests.enter_context(pace.request())
        for _ in range(40):
            machine.run(1.0, 0.1)
            last_ms = pace.pause_ms()
    assert last_ms == pytest.approx(pause_ms, abs=1)
    for _ in range(40):
        machine.run(1.0, 0.1)
        last_ms = pace.pause_ms()
    assert last_ms == MIN_PAUSE_MS, "all have ended"


@pytest.mark.django_db
def test_each_request_counts(client: Client) -> None:
    before = PACE._requests_s
    client.get("/livez")
    assert PACE._requests_s > before


def test_a_short_burst_is_not_measured_alone() -> None:
    machine = Machine()
    pace = machine.pace()
    machine.run(0.1, 5.0)
    assert pace.pause_ms() == MIN_PAUSE_MS
    machine.run(0.9, 0.0)
    assert pace.pause_ms() == MIN_PAUSE_MS, "half a second of a second, of which half counts"
    machine.run(1.0, 1.0)
    assert MIN_PAUSE_MS < pace.pause_ms() < MAX_PAUSE_MS
