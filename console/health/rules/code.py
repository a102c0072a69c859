"""The rule on the code of a run."""

from collections.abc import Iterator

from console.health.facts import RunFacts
from console.health.findings import Finding


def other_code(facts: RunFacts) -> Iterator[Finding]:
    """Code that was installed after the version was defined. The page of the version shows another graph or plan."""
    if facts.other_code:
        yield Finding(sentence=facts.other_code)
