"""Names of columns of our own, beside those that an author chooses freely."""

from collections.abc import Container


def free(name: str, taken: Container[str]) -> str:
    """`name`, behind as many colons as it takes to be none of these."""
    while name in taken:
        name = f":{name}"
    return name
