"""Dead letters of a job: rows that its steps have set aside."""

from typing import Any, Final

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.api.base import ScopedView
from console.api.json_schemas import integer_from
from console.api.parsing import number_between
from console.api.serializers.base import Problem
from console.pages.dead_letters import MAX_BYTES, MAX_FILES, MAX_LETTERS, dead_letters

DEFAULT_LETTERS: Final = 50
MAX_OFFSET: Final = 1_000_000


class ErrorCountSerializer(serializers.Serializer[Any]):
    operator = serializers.CharField()
    error = serializers.CharField(help_text="Type of the error.")
    rows = serializers.IntegerField()
    newest = serializers.DateTimeField()


class DeadLetterSerializer(serializers.Serializer[Any]):
    operator = serializers.CharField()
    error = serializers.CharField()
    message = serializers.CharField()
    traceback = serializers.CharField(help_text="Its end.")
    at = serializers.DateTimeField(help_text="When the row was set aside.")
    row = serializers.CharField(help_text="JSON; a long row is cut.")


class DeadLettersSerializer(serializers.Serializer[Any]):
    folders = serializers.ListField(child=serializers.CharField(), help_text="None: no step sets rows aside.")
    counts = ErrorCountSerializer(many=True, help_text="Of all dead letters that were read, whatever the filter.")
    letters = DeadLetterSerializer(many=True, help_text="Newest first.")
    total = serializers.IntegerField(help_text="Number of dead letters that were read and match the filter.")
    is_cut = serializers.BooleanField(
        help_text=f"Others were not read: a request reads the newest {MAX_BYTES >> 20} MiB of {MAX_FILES:,} files."
    )
    fault = serializers.CharField(allow_blank=True, help_text="Why a folder or a file cannot be read.")


class JobDeadLetters(ScopedView):
    """The rows that the steps of the latest run's version have set aside, with counts by operator and error."""

    serializer_class = DeadLettersSerializer
    query = frozenset({"operator", "error", "offset", "limit"})

    @extend_schema(
        parameters=[
            OpenApiParameter("operator", str, description="Uid of the operator"),
            OpenApiParameter("error", str, description="Type of the error"),
            OpenApiParameter("offset", integer_from(0, MAX_OFFSET), description="Dead letters to leave out; default 0"),
            OpenApiParameter(
                "limit", integer_from(1, MAX_LETTERS), description=f"Dead letters; default {DEFAULT_LETTERS}"
            ),
        ],
        responses={200: DeadLettersSerializer, 404: Problem, 422: Problem, 503: Problem},
    )
    def get(self, request: Request, job: int) -> Response:
        query = request.query_params
        page = dead_letters(
            self.parent(),
            query.get("operator", ""),
            query.get("error", ""),
            number_between("offset", query.get("offset", "0"), 0, MAX_OFFSET),
            number_between("limit", query.get("limit", str(DEFAULT_LETTERS)), 1, MAX_LETTERS),
        )
        return Response(self.get_serializer(page).data)
