"""Exceptions by which services refuse a request: the API renders them as problems, pages as sentences."""

from http import HTTPStatus
from typing import Any


class Refused(Exception):
    """A request that was understood and not carried out. No row has changed.

    `code` is a stable identifier and `field` names the input at fault (dotted, as in the request body). `facts` are
    values that a program needs to react, such as the id of the operation that blocks the request.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        field: str | None = None,
        status: HTTPStatus = HTTPStatus.UNPROCESSABLE_ENTITY,
        **facts: Any,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.field = field
        self.status = status
        self.facts = facts


class InvalidField(Refused):
    """A value of the request is out of bounds. `field` is also the beginning of the sentence."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__("invalid-field", f"{field}: {problem}.", field)


class Conflict(Refused):
    """The request is valid, but not in the present state of the job."""

    def __init__(self, code: str, detail: str, field: str | None = None, **facts: Any) -> None:
        super().__init__(code, detail, field, HTTPStatus.CONFLICT, **facts)


class Forbidden(Refused):
    """The user lacks the permission for this request."""

    def __init__(self, detail: str) -> None:
        super().__init__("not-permitted", detail, status=HTTPStatus.FORBIDDEN)
