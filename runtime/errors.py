"""The errors of the runtime, ordered by the person or component that must act.

    WeirError
    ├── ProtocolViolation    a bug in Weir: the attempt ends and reports the last events
    ├── EnvironmentFailure   storage, network, database: the driver restarts the attempt
    │   ├── CorruptState     a state file is missing or differs from its manifest: restore another one
    │   └── TargetAway       an outside system (input, output, object store) does not serve: waited out, never counted
    ├── OperatorFailure      code of the job raised: restarted by the restart strategy, the operator is named
    ├── SlotOutOfMemory      a slot's process is above its memory bound: more parallelism, or a larger bound, is needed
    ├── DataRejected         a record that cannot be read, under the policy `fail`: file, row and column are named
    └── JobRejected          the author's graph, parameters or restore request: shown in the form, a 4xx in the API

An attempt that is superseded, a late message and a lost race are values, not errors.
"""

import errno
from collections.abc import Iterator
from typing import Final


class WeirError(Exception):
    """Base of every error that the runtime raises on purpose."""


class ProtocolViolation(WeirError):
    """A state machine received an event that its protocol forbids."""


class EnvironmentFailure(WeirError):
    """The environment failed (disk, network, database, a lost slot); a retry may help."""


class CorruptState(EnvironmentFailure):
    """A state file or a manifest is missing, truncated or altered. `file` and the message name the file."""

    def __init__(self, file: str, problem: str) -> None:
        super().__init__(f"{file}: {problem}")
        self.file = file


class TargetAway(EnvironmentFailure):
    """A system that a connector or the state storage uses does not serve now. It is waited out and not counted."""


class OperatorFailure(WeirError):
    """Code of the job raised. The message names the operator and the subtask; None: the job master called the code."""

    def __init__(self, operator: str, subtask: int | None, hook: str, cause: BaseException) -> None:
        place = "job master" if subtask is None else f"subtask {subtask}"
        super().__init__(f"operator {operator!r}, {place}, in {hook}: {type(cause).__name__}: {cause}")
        self.operator = operator
        self.subtask = subtask
        self.hook = hook


class SlotOutOfMemory(WeirError):
    """The process of a slot uses more memory than `slot_memory_mb`. The message names slot, host, use and bound."""


class RowsNotRepeated(WeirError):
    """A restarted subtask sent other rows than before, which a surviving receiver has processed."""


class DataRejected(WeirError):
    """A record could not be read and the policy is `fail`. The message names file, row and column."""


class JobRejected(WeirError):
    """The job, its parameters or the requested restore is invalid; no run was started.

    `code` is a stable identifier, `field` names the parameter, operator or file at fault.
    """

    def __init__(self, code: str, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.code = code
        self.field = field
        self.detail = detail


#: Temporary failures of the environment: storage that is full, read-only or unavailable, a peer that refuses. A missing
#: file or permission is not temporary, since a person must fix it. A file that is too large is not temporary either.
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


def name_operator(error: BaseException, operator: str) -> None:
    """Notes the operator whose connector raised `error`, for `operator_of`. Its type stays what callers expect."""
    error.operator = operator_of(error) or operator  # type: ignore[attr-defined]


def operator_of(error: BaseException) -> str:
    """The operator that raised `error`; "" if it is not known."""
    return str(getattr(error, "operator", ""))


def is_outage(error: BaseException) -> bool:
    """Whether `error` is a temporary failure, or was raised from such a failure."""
    return any(
        isinstance(cause, TargetAway) or (isinstance(cause, OSError) and cause.errno in OUTAGE_ERRNOS)
        for cause in causes_of(error)
    )


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """`error` and its causes.

    Only explicit causes (`raise … from`) are followed, except behind an `OSError` without a number, which HTTP clients
    raise for a refused connection.
    """
    ids: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in ids:
        ids.add(id(cause))
        yield cause
        wraps = isinstance(cause, OSError) and cause.errno is None
        cause = cause.__cause__ or (cause.__context__ if wraps else None)
