"""Lists by cursor: no counting, and no row twice while others are added."""

from rest_framework.pagination import CursorPagination


class NewestFirst(CursorPagination):
    """`?limit=50&cursor=…` → `{"next", "previous", "results"}`."""

    ordering = "-id"
    page_size = 50
    page_size_query_param = "limit"
    max_page_size = 200


class NewestOperationFirst(NewestFirst):
    """Operations have random ids, so they are ordered by time."""

    ordering = ("-created_at", "-id")  # type: ignore[assignment]


class NewestNumberFirst(NewestFirst):
    """Checkpoints are numbered within their job, and a long history is indexed by these numbers."""

    ordering = "-number"


class ByName(NewestFirst):
    """Pipelines have names for ids."""

    ordering = "name"
