"""Base classes of admin pages for rows that must not be edited, such as runs and operations."""

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest


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
