"""Pagination by cursor: no counting, and no duplicates while rows are added."""

from datetime import datetime
from typing import Any

from rest_framework.exceptions import NotFound
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request

from console.accounts.refusals import InvalidField
from console.accounts.storable import text_problem
from console.api.parsing import whole_number


class NewestFirst(CursorPagination):
    """`?limit=50&cursor=…` → `{"next", "previous", "results"}`."""

    ordering = "-id"
    page_size = 50
    page_size_query_param = "limit"
    max_page_size = 200

    def get_page_size(self, request: Request) -> int:
        text = request.query_params.get(self.page_size_query_param)
        size = self.page_size if text is None else whole_number("limit", text, self.max_page_size)
        if not size:
            raise InvalidField("limit", "must be 1 or more")
        return size

    def get_schema_operation_parameters(self, view: Any) -> list[dict[str, Any]]:
        about = f"Number of rows. {self.page_size} by default, {self.max_page_size} at most"
        cursor = "Beginning of the page, from `next` or `previous` of another page"
        return [
            {"name": "cursor", "in": "query", "schema": {"type": "string"}, "description": cursor},
            {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1}, "description": about},
        ]

    def parse_position(self, position: str) -> object:
        """The cursor's position; raises ValueError for a cursor that no page issued."""
        return int(position)

    def decode_cursor(self, request: Request) -> Any:
        cursor = super().decode_cursor(request)
        try:
            if cursor is not None and cursor.position is not None:
                self.parse_position(str(cursor.position))
        except ValueError as error:
            raise NotFound(self.invalid_cursor_message) from error
        return cursor


class NewestOperationFirst(NewestFirst):
    """Orders operations by time, since their ids are random."""

    ordering = ("-created_at", "-id")  # type: ignore[assignment]

    def parse_position(self, position: str) -> object:
        return datetime.fromisoformat(position)


class NewestPackageFirst(NewestOperationFirst):
    """Orders packages by time, since their ids are digests."""

    ordering = ("-created_at", "digest")


class NewestNumberFirst(NewestFirst):
    """Orders checkpoints by their number within the job, which has an index."""

    ordering = "-number"


class ByName(NewestFirst):
    """Orders pipelines by name, which is their id."""

    ordering = "name"

    def parse_position(self, position: str) -> object:
        if why := text_problem(position):
            raise ValueError(why)
        return position
