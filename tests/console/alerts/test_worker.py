"""A worker of the queue housekeeping with its beat, as processes: a run fails, and the receiver gets an alert."""

from collections.abc import Iterator

import pytest

from tests.console.alerts.receivers import SECRET, Webhook
from tests.console.world import World
from tests.waiting import until

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def hook_secret() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEIR_SECRET_HOOK", SECRET)
        yield


def test_a_failed_run_reaches_the_receiver_by_itself(hook_secret: None, place: World, receiver: Webhook) -> None:
    place.sql(
        "INSERT INTO weir_alert_channel (name, address, signing_secret) VALUES ('night', %s, '${secret:HOOK}')",
        receiver.url,
    )
    run = place.new_run("running")
    place.sql(
        """UPDATE weir_run SET state = 'failed', ended_at = now(), failure = '{"code": "final", "message": "no rate"}'
           WHERE id = %s""",
        run,
    )
    until(lambda: receiver.requests, LIMIT_S)
    (message,) = receiver.messages
    (row,) = place.sql("SELECT * FROM weir_incident")
    assert (message["event"], message["incident"]["id"], row["run_id"]) == ("opened", row["id"], run)
    assert "no rate" in message["text"]
    until(lambda: place.sql("SELECT 1 FROM weir_alert_delivery WHERE delivered_at IS NOT NULL"), LIMIT_S)
