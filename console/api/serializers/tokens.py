"""Requests for tokens, and their answers."""

from typing import Any

from rest_framework import serializers

from console.accounts.models import ApiToken, all_scopes
from console.api.serializers.base import StrictSerializer


class LoginRequest(StrictSerializer):
    username = serializers.CharField(max_length=150)
    password = serializers.CharField(trim_whitespace=False, max_length=4_096)
    expires_at = serializers.DateTimeField(
        required=False,
        allow_null=True,
        help_text="Absent: after the days of the setting WEIR_TOKEN_DAYS. Null: the token does not expire.",
    )
    scopes = serializers.MultipleChoiceField(
        choices=all_scopes(),
        required=False,
        help_text="A token may read, and do what both its scopes and the permissions of its user allow. Default: none.",
    )


class LoginResponse(serializers.Serializer[Any]):
    token = serializers.CharField()
    scopes = serializers.ListField(child=serializers.CharField())
    expires_at = serializers.DateTimeField(allow_null=True)


class TokenSerializer(serializers.ModelSerializer[ApiToken]):
    """A token of the user. `hint` is its beginning; `used_at` is exact to the minute."""

    scopes = serializers.ListField(child=serializers.CharField())
    current = serializers.SerializerMethodField(help_text="Whether it is the token of this request.")

    def get_current(self, token: ApiToken) -> bool:
        return bool(self.context["request"].auth == token)

    class Meta:
        model = ApiToken
        fields = ("id", "hint", "scopes", "created_at", "used_at", "expires_at", "current")
