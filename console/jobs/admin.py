"""Definitions and runs in the admin. Only a job's description can be edited."""

import json
from typing import Any, cast

from django import forms
from django.contrib import admin
from django.contrib.admin.widgets import AdminTextareaWidget, AdminTextInputWidget
from django.db.models import QuerySet
from django.http import HttpRequest

from console.accounts.models import User
from console.accounts.read_only import NoAddOrDelete, ReadOnlyAdmin, RequestingAdmin
from console.jobs.attempts import with_numbers
from console.jobs.editing import edit_job
from console.jobs.masking import mask_settings
from console.jobs.models import Attempt, Connection, Job, JobVersion, Package, Pipeline, Run, StandingStage
from console.jobs.services import MAX_DESCRIPTION_LENGTH, parameter_schema
from runtime.access.redaction import mask


@admin.register(Pipeline)
class PipelineAdmin(ReadOnlyAdmin):
    list_display = ("name", "description", "updated_at")
    search_fields = ("name", "description")


@admin.register(Package)
class PackageAdmin(ReadOnlyAdmin):
    list_display = ("digest", "state", "size", "created_at", "created_by")
    list_filter = ("state",)
    list_select_related = ("created_by",)
    search_fields = ("digest",)
    date_hierarchy = "created_at"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Package]:
        return super().get_queryset(request).defer("description")  # up to a megabyte in each row


@admin.register(Connection)
class ConnectionAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Named connections. A change reaches a run with its next job master."""

    list_display = ("name", "address", "pipelines", "description", "updated_at")
    search_fields = ("name", "address", "description")
    fields = ("name", "description", "address", "options", "pipelines", "updated_at")
    readonly_fields = ("updated_at",)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **options: Any) -> Any:
        if db_field.name in ("name", "address", "pipelines"):
            options["widget"] = AdminTextInputWidget()
        return super().formfield_for_dbfield(db_field, request, **options)


class JobAdminForm(forms.ModelForm):  # type: ignore[type-arg]
    """Applies the console's length limit to the description."""

    description = forms.CharField(required=False, max_length=MAX_DESCRIPTION_LENGTH, widget=AdminTextareaWidget)


@admin.register(Job)
class JobAdmin(NoAddOrDelete, RequestingAdmin):
    """Jobs are created in the console, which checks names and pipelines. A change is that of the edit page."""

    form = JobAdminForm
    list_display = ("name", "pipeline", "description", "created_at", "created_by")
    list_filter = ("pipeline",)
    list_select_related = ("created_by",)
    search_fields = ("name", "pipeline", "description")
    date_hierarchy = "created_at"
    fields = ("name", "pipeline", "description", "created_at", "created_by", "last_checkpoint_id")
    readonly_fields = ("name", "pipeline", "created_at", "created_by", "last_checkpoint_id")

    def save_model(self, request: HttpRequest, obj: Job, form: "forms.ModelForm[Job]", change: bool) -> None:
        edit_job(cast(User, request.user), obj, description=form.cleaned_data["description"])


@admin.register(JobVersion)
class JobVersionAdmin(ReadOnlyAdmin):
    fields = (
        "job", "number", "state", "parallelism", "max_parallelism", "parameters", "shown_settings", "package", "graph",
        "error", "created_at", "created_by",
    )  # fmt: skip
    readonly_fields = ("parameters", "shown_settings")
    list_display = ("job", "number", "state", "parallelism", "max_parallelism", "created_at", "created_by")
    list_display_links = ("number",)
    list_filter = ("state", "job__pipeline")
    list_select_related = ("job", "created_by")
    search_fields = ("job__name", "=number")
    date_hierarchy = "created_at"

    @admin.display
    def parameters(self, version: JobVersion) -> str:
        """The parameters as JSON, with secrets masked."""
        return json.dumps(mask(version.params, parameter_schema(version)), ensure_ascii=False)

    @admin.display(description="settings")
    def shown_settings(self, version: JobVersion) -> str:
        """The settings as JSON, with values of unlisted Spark settings masked."""
        return json.dumps(mask_settings(version.settings), ensure_ascii=False)


class AttemptInline(NoAddOrDelete, admin.TabularInline):  # type: ignore[type-arg]
    model = Attempt
    fields = ("number", "token", "started_at", "ended_at", "outcome", "reason")
    readonly_fields = fields
    extra = 0

    def get_queryset(self, request: HttpRequest) -> QuerySet[Attempt]:
        return with_numbers(super().get_queryset(request))

    @admin.display
    def number(self, attempt: Any) -> int:
        """The number within the run."""
        return int(attempt.number)


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    fields = (
        "job", "version", "parallelism", "state", "failure", "restore_checkpoint", "restore_path", "allow_unmapped",
        "lineage", "releases", "created_at", "started_at", "ended_at", "created_by", "token", "lease_owner",
        "lease_beat", "observed_beat", "observed_since", "observed_at", "live", "live_at",
    )  # fmt: skip
    list_display = ("id", "job", "version", "state", "parallelism", "releases", "created_at", "started_at", "ended_at")
    list_filter = ("state", "job__pipeline")
    list_select_related = ("job", "version")
    search_fields = ("=id", "job__name", "failure__message")
    show_full_result_count = False
    list_per_page = 50
    date_hierarchy = "created_at"
    inlines = (AttemptInline,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        """Rows without the large columns, none of which the list shows; the page of a run reads its report."""
        large = ("live", "version__params", "version__settings", "version__graph")
        return super().get_queryset(request).defer(*large)


@admin.register(StandingStage)
class StandingStageAdmin(ReadOnlyAdmin):
    fields = (
        "run", "operator", "verb", "state", "deaths", "reason", "token", "lease_owner", "live", "live_at", "created_at",
    )  # fmt: skip
    list_display = (
        "id",
        "run__job",
        "run",
        "operator",
        "verb",
        "state",
        "deaths",
        "live_at",
        "lease_owner",
        "created_at",
    )
    list_filter = ("state", "verb", "run__job__pipeline")
    list_select_related = ("run__job",)
    search_fields = ("operator", "reason", "run__job__name", "=run__id")
    date_hierarchy = "created_at"
    ordering = ("-id",)
