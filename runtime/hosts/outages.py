"""Failures of the environment that pass by themselves: storage that is full, read-only or away, a peer that refuses.

They are told by the error number of an `OSError`. A missing file or a missing right is none of them: it stays until a
person mends it. Neither is a file that is too large.
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
    """Whether `error` is such a failure, or was raised from one.

    Only explicit causes (`raise … from`) are followed, except behind an `OSError` without a number: HTTP clients raise
    such errors for a refused connection.
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
