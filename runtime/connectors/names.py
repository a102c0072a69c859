"""Encodes job and operator names for use in file names, so that a file name identifies its writer."""

import re
from typing import Final
from urllib.parse import unquote

NAME_PATTERN: Final = r"[A-Za-z0-9_.~]+"  #: of encoded names
_UNSAFE_CHARACTER: Final = re.compile(r"[^A-Za-z0-9_.]")


def encode_name(part: str) -> str:
    """`part` encoded injectively, without dashes or characters that are special in paths: letters, digits, `_.~`."""
    return _UNSAFE_CHARACTER.sub(lambda match: "".join(f"~{byte:02X}" for byte in match[0].encode()), part)


def decode_name(name: str) -> str:
    """The inverse of `encode_name`."""
    return unquote(name.replace("~", "%"))
