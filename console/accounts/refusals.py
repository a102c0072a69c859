"""The one way in which a service says no: the API renders it as a problem, a page as a sentence."""

from http import HTTPStatus
from typing import Any


class Refused(Exception):
    """A request that was understood and not carried out. Nothing has changed.

    `code` is a stable machine word, `field` names the input at fault (dotted, as in the request body), `facts` are
    values that a program needs to go on, such as the id of the operation that stands in the way.
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


class Conflict(Refused):
    """Legal in itself, but not in the state that things are in now."""

    def __init__(self, code: str, detail: str, field: str | None = None, **facts: Any) -> None:
        super().__init__(code, detail, field, HTTPStatus.CONFLICT, **facts)


class Forbidden(Refused):
    """This user may not do this."""

    def __init__(self, detail: str) -> None:
        super().__init__("not-permitted", detail, status=HTTPStatus.FORBIDDEN)
