"""The Python values that state accepts: values of types that a restore preserves, as msgpack.

Most encoders silently turn a tuple or a set into a list, and a datetime into text.
"""

from typing import Any, Final

import msgpack

from runtime.errors import JobRejected

_pack: Final = msgpack.Packer(
    strict_types=True
).pack  # one call to C holds the interpreter's lock: threads may share it


def encode(state: str, value: Any) -> bytes:
    """`value` as msgpack. A bytearray becomes bytes.

    Raises:
        JobRejected: a restore would return another type, or msgpack cannot hold the value; the error names the state.
    """
    try:
        data: bytes = _pack(value)
    except (TypeError, ValueError, OverflowError) as error:
        detail = f"state holds None, booleans, numbers, text and bytes, in lists and dictionaries only: {error}"
        raise JobRejected("bad-state-value", state, detail) from error
    return data
