"""The rule on schedules of savepoints and restore drills."""

from collections.abc import Iterator

from console.health.facts import RunFacts
from console.health.findings import Finding


def missed_time(facts: RunFacts) -> Iterator[Finding]:
    """The last time of a schedule was missed."""
    for each in facts.missed:
        sentence = f"The {each.noun} of {each.at:%Y-%m-%d %H:%M} UTC was missed: {each.reason}"
        yield Finding(sentence=sentence, since=each.at)
