"""Verdicts in the admin: read-only, the jobs that need an operator first."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from console.accounts.read_only import ReadOnlyAdmin
from console.health.findings import Level
from console.health.models import JobHealth


class LevelFilter(admin.SimpleListFilter):
    title = "level"
    parameter_name = "level"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(level.word, level.word.capitalize()) for level in Level]

    def queryset(self, request: HttpRequest, queryset: QuerySet[JobHealth]) -> QuerySet[JobHealth]:
        levels = [level for level in Level if level.word == self.value()]
        return queryset.filter(level=levels[0]) if levels else queryset


@admin.register(JobHealth)
class JobHealthAdmin(ReadOnlyAdmin):
    list_display = ("job", "health", "sentence", "since", "recovery_at", "checked_at")
    list_filter = (LevelFilter,)
    list_select_related = ("job",)
    search_fields = ("job__name", "sentence")
    ordering = ("-level", "recovery_at")

    @admin.display(ordering="level")
    def health(self, row: JobHealth) -> str:
        return Level(row.level).word
