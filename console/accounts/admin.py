"""Users and API tokens in the admin. The API issues tokens; the admin limits and revokes them."""

from typing import Any, cast

from django import forms
from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.http import HttpRequest

from console.accounts.models import ApiToken, Scope, User
from console.accounts.throttling import throttle_login

admin.site.site_header = admin.site.site_title = "Weir administration"
admin.site.login = throttle_login(admin.site.login)  # type: ignore[method-assign]


@admin.register(User)
class AccountAdmin(UserAdmin):  # type: ignore[type-arg]
    """Django's page of a user, with the identity of single sign-on."""

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> Any:
        """An identity decides who signs in as its user."""
        fields = super().get_readonly_fields(request, obj)
        return fields if request.user.is_superuser else (*fields, "identity")

    fieldsets = (*(UserAdmin.fieldsets or ()), ("Single sign-on", {"fields": ("identity",)}))


@admin.register(ApiToken)
class ApiTokenAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Deleting a row revokes its token."""

    list_display = ("hint", "user", "scopes", "created_at", "used_at", "expires_at")
    list_select_related = ("user",)
    search_fields = ("user__username", "hint")
    readonly_fields = ("hint", "user", "created_at", "used_at")
    fields = (*readonly_fields, "scopes", "expires_at")

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **options: Any) -> Any:
        if db_field.name != "scopes":
            return super().formfield_for_dbfield(db_field, request, **options)
        choices = [(scope.value, scope.value) for scope in Scope]
        widget = forms.CheckboxSelectMultiple
        return forms.MultipleChoiceField(choices=choices, required=False, widget=widget, help_text=db_field.help_text)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: ApiToken | None = None) -> bool:
        """A token of a superuser may do everything: other staff may not widen its scopes or its time."""
        is_for_superusers = obj is not None and obj.user.is_superuser and not cast(User, request.user).is_superuser
        return super().has_change_permission(request, obj) and not is_for_superusers
