"""Names for internal columns beside columns whose names the author chooses."""

from collections.abc import Container


def free_name(name: str, names: Container[str]) -> str:
    """`name`, prefixed by as many colons as needed to differ from all `names`."""
    while name in names:
        name = f":{name}"
    return name
