"""Names for internal columns beside columns whose names the author chooses."""

from collections.abc import Container


def free_name(name: str, taken: Container[str]) -> str:
    """`name`, prefixed by as many colons as needed to differ from the `taken` names."""
    while name in taken:
        name = f":{name}"
    return name
