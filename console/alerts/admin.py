"""Channels, silences and deliveries of alerts in the admin. Only here are channels made."""

from typing import Any, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.widgets import AdminTextInputWidget
from django.db.models import QuerySet
from django.http import HttpRequest

from console.accounts.models import User
from console.accounts.read_only import ReadOnlyAdmin
from console.alerts.models import Channel, Delivery, Silence
from console.alerts.outbox import send_test


@admin.register(Channel)
class ChannelAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Channels. An action sends a test message, whose outcome is in the list of deliveries."""

    list_display = ("name", "address", "tags", "min_level", "repeat_hours", "is_enabled")
    fields = ("name", "address", "signing_secret", "tags", "min_level", "repeat_hours", "is_enabled")
    actions = ("send_test_message",)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **options: Any) -> Any:
        if db_field.name in ("address", "signing_secret"):
            options["widget"] = AdminTextInputWidget()
        return super().formfield_for_dbfield(db_field, request, **options)

    @admin.action(description="Send a test message", permissions=["change"])
    def send_test_message(self, request: HttpRequest, queryset: QuerySet[Channel]) -> None:
        for channel in queryset:
            if not channel.is_enabled:
                messages.error(request, f"{channel} is not enabled, so no message is sent to it.")
                continue
            send_test(channel, cast(User, request.user))
            messages.info(request, f"A test message to {channel} is due. The list of deliveries shows its outcome.")


@admin.register(Silence)
class SilenceAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    list_display = ("job", "until", "reason", "created_by", "created_at")
    list_select_related = ("job", "created_by")
    fields = ("job", "until", "reason")
    autocomplete_fields = ("job",)

    def save_model(self, request: HttpRequest, obj: Silence, form: "forms.ModelForm[Silence]", change: bool) -> None:
        obj.created_by = obj.created_by or cast(User, request.user)
        super().save_model(request, obj, form, change)


@admin.register(Delivery)
class DeliveryAdmin(ReadOnlyAdmin):
    list_display = ("created_at", "channel", "event", "incident", "delivered_at", "tries", "due_at", "error")
    list_filter = ("event", "channel")
    list_select_related = ("channel", "incident")
    show_full_result_count = False
    list_per_page = 50
