"""Requests for tokens, and their answers."""

from typing import Any

from rest_framework import serializers

from console.accounts.models import all_scopes
from console.api.serializers.base import StrictSerializer


class LoginRequest(StrictSerializer):
    username = serializers.CharField(max_length=150)
    password = serializers.CharField(trim_whitespace=False, max_length=4_096)
    expires_at = serializers.DateTimeField(
        required=False, allow_null=True, help_text="Absent: the token does not expire."
    )
    scopes = serializers.MultipleChoiceField(
        choices=all_scopes(),
        required=False,
        help_text="A token may read, and do what both its scopes and the permissions of its user allow. Default: all.",
    )


class LoginResponse(serializers.Serializer[Any]):
    token = serializers.CharField()
    scopes = serializers.ListField(child=serializers.CharField())
    expires_at = serializers.DateTimeField(allow_null=True)
