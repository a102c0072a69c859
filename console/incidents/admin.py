"""Incidents in the admin: read-only. Their pages have the acts."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from console.accounts.read_only import NoAddOrDelete, ReadOnlyAdmin
from console.incidents.models import Incident, IncidentFinding, IncidentNote


class _Rows(NoAddOrDelete, admin.TabularInline):  # type: ignore[type-arg]
    extra = 0
    can_delete = False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class FindingInline(_Rows):
    model = IncidentFinding
    fields = ("rule", "operator", "sentence", "since", "ended_at", "returns")
    readonly_fields = ("sentence",)


class NoteInline(_Rows):
    model = IncidentNote
    fields = ("kind", "text", "created_by", "created_at")


@admin.register(Incident)
class IncidentAdmin(ReadOnlyAdmin):
    list_display = ("id", "job", "level_word", "sentence", "opened_at", "closed_at", "taken_by")
    list_select_related = ("job", "taken_by")
    search_fields = ("job__name",)
    list_per_page = 50
    fields = ("job", "run_id", "level_word", "sentence", "operator_name", "opened_at", "well_since", "closed_at",
              "taken_by", "taken_at")  # fmt: skip
    inlines = (FindingInline, NoteInline)

    @admin.display
    def sentence(self, incident: Incident) -> str:
        return incident.finding.sentence
