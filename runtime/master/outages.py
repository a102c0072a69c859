"""Temporary failures of the environment: storage that is full, read-only or unavailable, a peer that refuses.

The error number of an `OSError` identifies them. A missing file or permission is not temporary: a person must fix it.
Neither is a file that is too large.
"""

import errno
from typing import Final

OUTAGE_ERRNOS: Final = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EROFS,
        errno.EIO,
        errno.ESTALE,
        errno.ENODEV,
        errno.EREMOTEIO,
        errno.ENOTCONN,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.ECONNABORTED,
        errno.EPIPE,
        errno.ETIMEDOUT,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
    }
)


def is_outage(error: BaseException) -> bool:
    """Whether `error` is a temporary failure, or was raised from such a failure.

    Only explicit causes (`raise … from`) are followed, except behind an `OSError` without a number, which HTTP clients
    raise for a refused connection.
    """
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if isinstance(found, OSError) and found.errno in OUTAGE_ERRNOS:
            return True
        wraps = isinstance(found, OSError) and found.errno is None
        found = found.__cause__ or (found.__context__ if wraps else None)
    return False
