"""The webhook against a real HTTP server: keys, repeats, errors that are repeated and errors that are final."""

import datetime
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.connectors.sinks.webhook import Webhook, split_rows
from runtime.errors import DataRejected, EnvironmentFailure, JobRejected, TargetAway, is_outage
from runtime.ports import OutputEpoch
from tests.webhook_server import WebhookServer, running_webhook

EPOCH = OutputEpoch(source="s", number=3, job="job", sink="out", checkpoint=7, rows=5)


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64())})


@pytest.fixture
def server() -> Iterator[WebhookServer]:
    with running_webhook() as server:
        yield server


def webhook(server: WebhookServer, path: str = "/in", **arguments: Any) -> Webhook:
    webhook = Webhook(server.url + path, **{"batch_rows": 2, "timeout_s": 5.0} | arguments)
    webhook.check()
    return webhook


@given(st.lists(st.integers(0, 5), max_size=6), st.integers(1, 4))
def test_rows_are_split_in_order_across_batches(sizes: list[int], count: int) -> None:
    numbers = list(range(sum(sizes)))
    left = iter(numbers)
    batches = [rows(*(next(left) for _ in range(size))) for size in sizes]
    parts = list(split_rows(batches, count))
    assert [row["n"] for _, part in parts for row in part] == numbers
    assert [first for first, _ in parts] == list(range(0, len(numbers), count))
    assert all(len(part) == count for _, part in parts[:-1])


def test_a_repeated_epoch_has_the_same_keys_and_batches(server: WebhookServer) -> None:
    """S1-26: the receiver takes each row once."""
    for batches in ([rows(1, 2, 3), rows(4, 5)], [rows(1), rows(2, 3, 4, 5)]):
        webhook(server).write_epoch(EPOCH, batches)
    received = server.at("/in")
    assert [key for key, _ in received.requests] == ["s-3-0-1", "s-3-2-3", "s-3-4-4"] * 2
    assert received.rows == [{"n": n} for n in (1, 2, 3, 4, 5)]


def test_a_server_that_ends_the_connection_in_mid_epoch_gets_the_rest_at_the_repetition(server: WebhookServer) -> None:
    received = server.at("/in")
    received.answer = lambda count: 0 if count == 2 else 200
    with pytest.raises(TargetAway, match="/in does not answer"):
        webhook(server).write_epoch(EPOCH, [rows(1, 2, 3, 4, 5)])
    assert len(received.rows) == 4, "the second batch was taken, and its answer was lost"
    webhook(server).write_epoch(EPOCH, [rows(1, 2, 3, 4, 5)])
    assert received.rows == [{"n": n} for n in (1, 2, 3, 4, 5)]


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 507])
def test_a_temporary_status_is_repeated(server: WebhookServer, status: int) -> None:
    """S1-04."""
    server.at("/in").answer = lambda count: status
    with pytest.raises(EnvironmentFailure, match=rf"Webhook http://\S+/in answers with status {status} \(") as error:
        webhook(server).write_epoch(EPOCH, [rows(1)])
    assert is_outage(error.value) == (status not in (425, 500)), "an overloaded server is waited out"


@pytest.mark.parametrize("status", [301, 307, 400, 401, 404, 422])
def test_any_other_status_ends_the_job(server: WebhookServer, status: int) -> None:
    """S1-04."""
    server.at("/in").answer = lambda count: status
    with pytest.raises(JobRejected, match=rf"Webhook http://\S+/in refuses a batch with status {status} \("):
        webhook(server).write_epoch(EPOCH, [rows(1)])


def test_a_server_that_is_away_or_silent_is_waited_out(server: WebhookServer) -> None:
    with running_webhook() as closed_server:
        away = webhook(closed_server)
    with pytest.raises(TargetAway, match="does not answer: Connection refused"):
        away.write_epoch(EPOCH, [rows(1)])
    with server.lock, pytest.raises(TargetAway, match=r"does not answer within 0\.05 s: raise `timeout_s`"):
        webhook(server, timeout_s=0.05).write_epoch(EPOCH, [rows(1)])


def test_secrets_are_resolved_in_the_request_only(server: WebhookServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEIR_SECRET_TOKEN", "hidden")
    target = webhook(server, "/in?key=${secret:token}", headers={"Authorization": "Bearer ${secret:token}"})
    target.write_epoch(EPOCH, [rows(1)])
    received = server.at("/in?key=hidden")
    assert received.headers[0]["Authorization"] == "Bearer hidden"
    received.answer = lambda count: 403
    with pytest.raises(JobRejected) as error:
        target.write_epoch(EPOCH, [rows(1)])
    monkeypatch.setenv("WEIR_SECRET_TOKEN", "hid\nden")
    with pytest.raises(JobRejected, match="invalid character") as invalid:
        target.write_epoch(EPOCH, [rows(1)])
    assert "hid" not in f"{error.value} {invalid.value} {target!r}"
    monkeypatch.delenv("WEIR_SECRET_TOKEN")
    with pytest.raises(JobRejected, match="'token' is not set on this host"):
        target.write_epoch(EPOCH, [rows(1)])


def test_values_without_a_json_type_are_text(server: WebhookServer) -> None:
    moment = datetime.datetime(2026, 11, 23, 11, 30, tzinfo=datetime.UTC)
    given_rows = pa.RecordBatch.from_pylist(
        [{"t": moment, "d": Decimal("1.50"), "b": b"\0", "f": float("nan"), "l": [1]}]
    )
    webhook(server).write_epoch(EPOCH, [given_rows])
    assert server.at("/in").rows == [{"t": "2026-11-23T11:30:00Z", "d": "1.50", "b": "AA==", "f": None, "l": [1]}]


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("ftp://host/", {}),
        ("http://", {}),
        ("http://host:x/", {}),
        ("http://user:password@host/", {}),
        ("http://h/", {"headers": {"Authorization": "Bearer abc"}}),
        ("http://h/", {"headers": {"idempotency-key": "1"}}),
        ("http://h/", {"batch_rows": 0}),
        ("http://h/", {"timeout_s": 0.0}),
        ("http://h/", {"guarantee": "none"}),
    ],
)
def test_bad_settings_are_refused(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(JobRejected) as error:
        Webhook(url, **options).check()
    assert "abc" not in str(error.value)
    assert "password@" not in str(error.value)


def test_a_url_may_be_a_secret_or_have_some_behind_its_host() -> None:
    Webhook("${secret:hook}").check()
    Webhook("https://hooks.example.org/${secret:path}?key=${secret:key}").check()


def test_a_time_that_json_lacks_is_named() -> None:
    """The job master reads the rows after their checkpoint."""
    late = pa.RecordBatch.from_arrays([pa.array([2**63 - 1], pa.timestamp("us"))], names=["at"])
    with pytest.raises(DataRejected, match="cannot be written as JSON"):
        list(split_rows([late], 10))
