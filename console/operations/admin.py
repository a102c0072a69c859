"""Operations in the admin, read-only; and checkpoints, whose reviews, names and pins are changed by operations."""

from collections.abc import Sequence
from typing import Any, Final, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.widgets import AdminTextareaWidget, AdminTextInputWidget
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse

from console.accounts.middleware import request_id_of
from console.accounts.models import User
from console.accounts.read_only import ReadOnlyAdmin
from console.accounts.refusals import Refused
from console.accounts.rights import operate_refusal
from console.checkpoints.admin import REVIEW_FIELDS, CheckpointAdmin
from console.checkpoints.models import Checkpoint, ReviewState
from console.jobs.changes import MAX_REASON_LENGTH
from console.operations import services
from console.operations.maintenance import begin_maintenance, end_maintenance
from console.operations.models import Maintenance, Operation, OperationKind, Schedule

_LABEL_FIELDS = ("name", "note")
MAX_SELECTED: Final = 100  #: checkpoints that an action of the list may change


@admin.register(Operation)
class OperationAdmin(ReadOnlyAdmin):
    list_display = ("id", "kind", "job", "run_id", "state", "phase", "requested_by", "created_at", "ended_at")
    list_filter = ("state", "kind", ("created_at", admin.DateFieldListFilter))
    list_select_related = ("job", "requested_by")
    search_fields = ("=id", "job__name", "reason", "=request_id", "requested_by__username")
    show_full_result_count = False
    list_per_page = 50


class MaintenanceForm(forms.ModelForm):  # type: ignore[type-arg]
    reason = forms.CharField(max_length=MAX_REASON_LENGTH, widget=AdminTextareaWidget)


@admin.register(Maintenance)
class MaintenanceAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """The switch of the maintenance mode: a new row begins maintenance, and an action ends it."""

    list_display = ("reason", "started_by", "started_at", "ended_by", "ended_at")
    list_select_related = ("started_by", "ended_by")
    form = MaintenanceForm
    fields = ("reason",)
    actions = ("end_maintenance",)

    def has_change_permission(self, request: HttpRequest, obj: Maintenance | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Maintenance | None = None) -> bool:
        return False

    def add_view(self, request: HttpRequest, form_url: str = "", extra_context: Any = None) -> HttpResponse:
        try:
            return super().add_view(request, form_url, extra_context)
        except Refused as refused:
            messages.error(request, refused.detail)
            return redirect("admin:operations_maintenance_changelist")

    def save_model(self, request: HttpRequest, obj: Maintenance, form: Any, change: bool) -> None:
        row = begin_maintenance(cast(User, request.user), form.cleaned_data["reason"])
        obj.pk, obj.reason = row.pk, row.reason

    @admin.action(description="End maintenance", permissions=["add"])
    def end_maintenance(self, request: HttpRequest, queryset: QuerySet[Maintenance]) -> None:
        try:
            end_maintenance(cast(User, request.user))
        except Refused as refused:
            messages.error(request, refused.detail)


class PinnedFilter(admin.SimpleListFilter):
    title = "pinned"
    parameter_name = "pinned"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "Pinned"), ("no", "Not pinned")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Checkpoint]) -> QuerySet[Checkpoint]:
        return queryset.filter(pinned_at__isnull=self.value() == "no") if self.value() in ("yes", "no") else queryset


@admin.register(Checkpoint)
class LabeledCheckpointAdmin(CheckpointAdmin):
    """Review, name, note and pin of checkpoints. Users who may not operate jobs see them as text."""

    list_filter = (*CheckpointAdmin.list_filter, PinnedFilter)
    actions: Any = ("mark_in_review", "mark_reviewed", "mark_waived", "pin", "unpin")
    fieldsets = (
        CheckpointAdmin.fieldsets[0],
        ("Name and pin", {"fields": (*_LABEL_FIELDS, "pinned_at", "pinned_by")}),
        CheckpointAdmin.fieldsets[1],
    )

    def get_readonly_fields(self, request: HttpRequest, obj: Checkpoint | None = None) -> Any:
        fields = self.readonly_fields
        return (*fields, *_LABEL_FIELDS, *REVIEW_FIELDS) if operate_refusal(request.user) else fields

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **options: Any) -> Any:
        if db_field.name == "name":
            options["widget"] = AdminTextInputWidget
        return super().formfield_for_dbfield(db_field, request, **options)

    @admin.action(description="Mark in review: retention keeps the files", permissions=["change"])
    def mark_in_review(self, request: HttpRequest, queryset: QuerySet[Checkpoint]) -> HttpResponse | None:
        return self._act(request, queryset, "mark_in_review", OperationKind.REVIEW, state=ReviewState.IN_REVIEW.value)

    @admin.action(description="Mark reviewed", permissions=["change"])
    def mark_reviewed(self, request: HttpRequest, queryset: QuerySet[Checkpoint]) -> HttpResponse | None:
        return self._act(request, queryset, "mark_reviewed", OperationKind.REVIEW, state=ReviewState.REVIEWED.value)

    @admin.action(description="Mark waived", permissions=["change"])
    def mark_waived(self, request: HttpRequest, queryset: QuerySet[Checkpoint]) -> HttpResponse | None:
        return self._act(request, queryset, "mark_waived", OperationKind.REVIEW, state=ReviewState.WAIVED.value)

    @admin.action(description="Pin", permissions=["change"])
    def pin(self, request: HttpRequest, queryset: QuerySet[Checkpoint]) -> HttpResponse | None:
        return self._act(request, queryset, "pin", OperationKind.PIN)

    @admin.action(description="Unpin", permissions=["change"])
    def unpin(self, request: HttpRequest, queryset: QuerySet[Checkpoint]) -> HttpResponse | None:
        return self._act(request, queryset, "unpin", OperationKind.UNPIN)

    def save_model(self, request: HttpRequest, obj: Checkpoint, form: Any, change: bool) -> None:
        """Requests operations for the changed fields: the job master may have updated the row meanwhile."""
        if set(REVIEW_FIELDS) & set(form.changed_data):
            state, note = form.cleaned_data["review_state"], form.cleaned_data["review_note"]
            self._request(request, obj, OperationKind.REVIEW, state=state, note=note)
        changed = {name: form.cleaned_data[name].strip() for name in _LABEL_FIELDS if name in form.changed_data}
        if changed:
            self._request(request, obj, OperationKind.LABEL, **changed)

    def _act(
        self, request: HttpRequest, queryset: QuerySet[Checkpoint], action: str, kind: OperationKind, **params: Any
    ) -> HttpResponse | None:
        """Asks first, then requests the operation on each selected checkpoint. "Select all" may select a million."""
        checkpoints = list(queryset[: MAX_SELECTED + 1])
        if len(checkpoints) > MAX_SELECTED:
            detail = f"Select at most {MAX_SELECTED} checkpoints for an action. No checkpoint was changed."
            messages.error(request, detail)
            return None
        if "confirmed" in request.POST:
            self._request_all(request, checkpoints, kind, request.POST.get("reason", "").strip(), **params)
            return None
        description = dict(self.get_action_choices(request))[action]
        context = {
            **self.admin_site.each_context(request), "title": f"{description}?", "opts": self.opts,
            "chosen": checkpoints, "action": action, "description": description, "max_reason": MAX_REASON_LENGTH,
            "verb": description.partition(":")[0],
        }  # fmt: skip
        return TemplateResponse(request, "admin/checkpoint_action.html", context)

    def _request(
        self, request: HttpRequest, checkpoint: Checkpoint, kind: OperationKind, reason: str = "", **params: Any
    ) -> None:
        context = services.OperationRequestContext(
            user=cast(User, request.user), reason=reason, request_id=request_id_of(request)
        )
        services.request(context, checkpoint.job, kind, {"checkpoint": checkpoint.pk, **params})

    def _request_all(
        self, request: HttpRequest, checkpoints: Sequence[Checkpoint], kind: OperationKind, reason: str, **params: Any
    ) -> None:
        """Requests the operation on each checkpoint. Refusals become messages."""
        accepted = 0
        for checkpoint in checkpoints:
            try:
                self._request(request, checkpoint, kind, reason, **params)
                accepted += 1
            except Refused as refused:
                messages.error(request, refused.detail)
        if accepted:
            messages.success(request, f"{kind.value.capitalize()} of {accepted} accepted.")


@admin.register(Schedule)
class ScheduleAdmin(ReadOnlyAdmin):
    list_display = (
        "job",
        "operation",
        "__str__",
        "keep",
        "name",
        "owner",
        "next_at",
        "last_operation",
        "missed_at",
        "missed_reason",
    )
    list_select_related = ("job", "owner", "last_operation")
    search_fields = ("job__name", "name")
