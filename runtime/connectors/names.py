"""Names of files that say who made them, so that everybody can tell his own files from all others."""

import re
from typing import Final
from urllib.parse import unquote

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.]")


def safe(part: str) -> str:
    """`part` for use between the dashes of a file name: unambiguous, without characters that paths or readers mind."""
    return _UNSAFE.sub(lambda found: "".join(f"~{byte:02X}" for byte in found[0].encode()), part)


def original(name: str) -> str:
    """The part that `safe` has made `name` of."""
    return unquote(name.replace("~", "%"))
