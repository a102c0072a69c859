"""Rules on schedules of savepoints and restore drills, and on the drill that ended last."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from console.health.facts import RunFacts
from console.health.findings import Finding

DRILL_SHOWN: Final = timedelta(days=8)  #: how long a failed drill is a finding: schedules of drills may be weekly


def missed_time(facts: RunFacts) -> Iterator[Finding]:
    """The last time of a schedule was missed."""
    for each in facts.missed:
        sentence = f"The {each.noun} of {each.at:%Y-%m-%d %H:%M} UTC was missed: {each.reason}"
        yield Finding(sentence=sentence, since=each.at)


def drill_failed(facts: RunFacts) -> Iterator[Finding]:
    """The drill that ended last has failed: the snapshot may not be restorable."""
    failed = facts.failed_drill
    if failed is None or facts.now - failed.ended_at > DRILL_SHOWN:
        return
    of = f" of snapshot {failed.number}" if failed.number is not None else ""
    why = f": {failed.message.rstrip('.')}" if failed.message else ""
    yield Finding(
        sentence=f"The newest restore drill{of} failed {facts.age(failed.ended_at)} ago{why}.",
        since=failed.ended_at,
    )
