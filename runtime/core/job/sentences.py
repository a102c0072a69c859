"""Parts of sentences for failure texts and explanations."""

from collections.abc import Sequence


def listed(texts: Sequence[str]) -> str:
    """The texts as in "a, b and c"; "" without texts."""
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
