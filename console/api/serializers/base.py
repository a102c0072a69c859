"""Request bodies without unknown members, and the problem document (RFC 9457)."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from rest_framework import serializers

PROBLEM_TYPE = "application/problem+json"  #: media type of `Problem`


#: JSON types of fields that would convert other types: a number to text, or a text to a number.
_JSON_TYPES: Final[tuple[tuple[type[serializers.Field[Any, Any, Any, Any]], type], ...]] = (
    (serializers.BooleanField, bool), (serializers.IntegerField, int), (serializers.CharField, str),
    (serializers.DateTimeField, str), (serializers.MultipleChoiceField, list), (serializers.ChoiceField, str),
)  # fmt: skip


class StrictSerializer(serializers.Serializer[Any]):
    """A request body without unknown members and without conversions between JSON types."""

    #: Keywords of the JSON schema on several members, which `validate` checks.
    conditions: ClassVar[Mapping[str, Any]] = {}

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict):
            if unknown := sorted(set(data) - set(self.fields)):
                raise serializers.ValidationError(dict.fromkeys(unknown, "This member is unknown."), code="unknown")
            wrong = [name for name, value in data.items() if not _has_type(self.fields[name], value)]
            if wrong:
                raise serializers.ValidationError(dict.fromkeys(wrong, "The JSON type is wrong."), code="invalid")
        return super().to_internal_value(data)


def _has_type(field: Any, value: Any) -> bool:
    """Whether the JSON type of `value` is that of `field`. The field itself checks null, objects and lists."""
    if value is None:
        return True
    if isinstance(field, serializers.ListField):
        return not isinstance(value, list) or all(_has_type(field.child, item) for item in value)
    for kind, json_type in _JSON_TYPES:
        if isinstance(field, kind):
            if json_type is int and isinstance(value, float):
                return value.is_integer()
            return isinstance(value, json_type) and isinstance(value, bool) == (json_type is bool)
    return True


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
