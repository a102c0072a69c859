"""Base classes of admin pages for rows that must not be edited, such as runs and operations, or only by requests."""

from typing import Any, Final

from django.contrib import admin, messages
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from console.accounts.refusals import Refused

MAX_KEYS: Final = 1_000  #: of rows that match a search


class NoAddOrDelete:
    """Pages for rows that the admin neither creates nor deletes: files of a deleted row would stay on disk."""

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class ReadOnlyAdmin(NoAddOrDelete, admin.ModelAdmin):  # type: ignore[type-arg]
    """List, search and show rows without add, change or delete."""

    actions = None

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Searches once if few rows match: the count, the page and the dates then use the keys of these.

        A search reads each row, since no index fits a text within columns of several tables.
        """
        rows, may_repeat = super().get_search_results(request, queryset, search_term)
        if not search_term:
            return rows, may_repeat
        keys = list(rows.order_by().values_list("pk", flat=True)[: MAX_KEYS + 1])
        return (queryset.filter(pk__in=keys) if len(keys) <= MAX_KEYS else rows), may_repeat


class RequestingAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """A page whose changes are requests. A refusal is the only message, and nothing of the change is stored."""

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        try:
            return super().change_view(request, object_id, form_url, extra_context)
        except Refused as refused:
            messages.error(request, refused.detail)
            return redirect(request.get_full_path())
