"""Request bodies without unknown members, and the problem document (RFC 9457)."""

from typing import Any

from rest_framework import serializers


class StrictSerializer(serializers.Serializer[Any]):
    """A request body without unknown members."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict) and (unknown := sorted(set(data) - set(self.fields))):
            raise serializers.ValidationError(dict.fromkeys(unknown, "This member is unknown."), code="unknown")
        return super().to_internal_value(data)


class ProblemField(serializers.Serializer[Any]):
    pointer = serializers.CharField()
    code = serializers.CharField()
    detail = serializers.CharField()


class RejectionSerializer(serializers.Serializer[Any]):
    """Why a version was rejected. `field` names the parameter or operator."""

    code = serializers.CharField()
    field = serializers.CharField(allow_blank=True)
    detail = serializers.CharField()


class Problem(serializers.Serializer[Any]):
    """RFC 9457. `run` and `operation` block the request; `rejection` belongs to the requested version."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    code = serializers.CharField()
    errors = ProblemField(many=True)  # type: ignore[assignment]  # RFC 9457 extension, shadows a DRF property
    request_id = serializers.CharField()
    run = serializers.IntegerField(required=False)
    operation = serializers.CharField(required=False)
    rejection = RejectionSerializer(required=False)
