"""Operations in the admin, read-only."""

from django.contrib import admin

from console.accounts.read_only import ReadOnlyAdmin
from console.operations.models import Operation


@admin.register(Operation)
class OperationAdmin(ReadOnlyAdmin):
    list_display = ("id", "kind", "job", "run", "state", "phase", "requested_by", "created_at", "ended_at")
    list_filter = ("state", "kind")
    list_select_related = ("job", "run", "requested_by")
    search_fields = ("=id", "job__name", "reason", "=request_id", "requested_by__username")
    date_hierarchy = "created_at"
