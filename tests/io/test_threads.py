"""Where no thread is free, channels and control connections fail with a reason, and close: none hangs or loses."""

import threading
from collections.abc import Iterator

import pytest

from runtime.core.job.messages import Watermark
from runtime.errors import EnvironmentFailure
from runtime.io.threads import start_thread
from tests.contracts.channels import CHANNEL, FlightNetwork, LocalNetwork, Pair
from tests.contracts.wiring import Note, Wiring
from tests.starved_threads import starved
from tests.waiting import until

LOCAL, FLIGHT = LocalNetwork, FlightNetwork


@pytest.fixture
def wiring() -> Iterator[Wiring]:
    wiring = Wiring()
    yield wiring
    wiring.close()


def test_a_thread_that_cannot_start_is_a_failure_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = threading.Event()
    with starved(monkeypatch, "any"), pytest.raises(EnvironmentFailure, match="no thread is free for any-1"):
        start_thread(threading.Thread(target=ran.set, name="any-1"))
    start_thread(threading.Thread(target=ran.set, name="any-1"))
    assert ran.wait(30)


@pytest.mark.parametrize("name", ["credits-", "grants-"])
@pytest.mark.parametrize("kind", [LOCAL, FLIGHT])
def test_a_channel_without_one_of_its_threads_is_lost_to_its_sender(
    kind: type[FlightNetwork], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt fails, and nothing of the channel is committed."""
    network = kind()
    pair = Pair(network)
    with starved(monkeypatch, name):
        pair.send(Watermark(1))
        assert "no thread is free" in pair.heard[0].wait_for_loss(CHANNEL)
    network.close()


def test_a_channel_without_a_thread_that_serves_its_local_stream_uses_flight_or_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server closes the stream. The sender may see that when it connects, or later."""
    network = LocalNetwork()
    pair = Pair(network)
    with starved(monkeypatch, "local-stream"):
        pair.send(Watermark(1))
        until(lambda: bool(pair.heard[0].losses or pair.heard[1].messages[CHANNEL]))
    network.close()


@pytest.mark.parametrize("kind", [LOCAL, FLIGHT])
def test_a_channel_without_a_sending_thread_is_refused(
    kind: type[FlightNetwork], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = kind()
    pair = Pair(network)
    with starved(monkeypatch, "send-"), pytest.raises(EnvironmentFailure, match="no thread is free"):
        pair.send(Watermark(1))
    network.close()


def test_an_exchange_closes_without_a_free_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    network = LocalNetwork()
    pair = Pair(network)
    pair.send(Watermark(1))
    pair.received(1)
    with starved(monkeypatch, "slot-"):
        for slot in pair.slots:
            slot.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name == f"send-{CHANNEL}"]


def test_a_master_without_a_thread_for_a_slot_disconnects_it_and_closes(
    wiring: Wiring, monkeypatch: pytest.MonkeyPatch
) -> None:
    with starved(monkeypatch, "control-1"):
        wiring.client()
        wiring.slots.wait("lost")
    wiring.client(slot=2).send(Note(1))
    assert wiring.master.wait("message", 2) == [Note(1)]


@pytest.mark.parametrize("name", ["control-slot-1", "control-write-slot-1"])
def test_a_slot_without_a_thread_for_its_master_does_not_start(
    wiring: Wiring, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with starved(monkeypatch, name), pytest.raises(EnvironmentFailure, match="no thread is free"):
        wiring.client()
    assert not wiring.master.of("hello", 1)
