"""The state of a checkpoint: its contents, queries on it, and their tables."""

from http import HTTPStatus
from typing import Any

from django.http import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.refusals import Conflict
from console.api.activity import AwaitedView
from console.api.base import ScopedView, StrictView, location_response
from console.api.filters import StateQueryFilter
from console.api.serializers.base import Problem, StrictSerializer
from console.checkpoints import state_queries
from console.checkpoints.models import Checkpoint, StateQuery
from console.checkpoints.tables import csv_response
from runtime.core.snapshot.contents import StateKind


class StoredStateSerializer(serializers.Serializer[Any]):
    """A state of an operator. `view` is its name in SQL; list states have no view, their elements are in view
    `contents`.
    """

    operator = serializers.CharField()
    state = serializers.CharField(source="name")
    kind = serializers.ChoiceField(choices=[kind.value for kind in StateKind])
    subtasks = serializers.IntegerField()
    rows = serializers.IntegerField(help_text="In files: a key changed since the last compaction counts once a file.")
    size_bytes = serializers.IntegerField(source="nbytes")
    keys = serializers.DictField(child=serializers.CharField(), help_text="Arrow types of the operator's key columns.")
    view = serializers.CharField(allow_blank=True)


class CheckpointStateSerializer(serializers.Serializer[Any]):
    states = StoredStateSerializer(many=True)
    queries = serializers.DictField(child=serializers.CharField(), help_text="SQL by name, saved with the pipeline.")


class CursorSerializer(StrictSerializer):
    group = serializers.IntegerField(min_value=0)
    skip = serializers.IntegerField(min_value=0)


class StateQueryRequest(StrictSerializer):
    """Either `query`, the name of SQL saved with the pipeline, or `operator` and `state` for a page of rows."""

    conditions = {
        "oneOf": [
            {"required": ["query"], "maxProperties": 1},
            {"required": ["operator", "state"], "not": {"required": ["query"]}},
        ]
    }

    query = serializers.CharField(required=False)
    operator = serializers.CharField(required=False)
    state = serializers.CharField(required=False)
    key = serializers.DictField(
        required=False,
        help_text="Values by key column; absent: all rows. Times of windows and sessions are ms, or a text such as "
        "2013-06-12 08:00 in UTC.",
    )
    cursor = CursorSerializer(required=False, help_text="Cursor of the previous result; absent: the first page.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "query" in attrs:
            if names := sorted(attrs.keys() - {"query"}):
                raise serializers.ValidationError(
                    dict.fromkeys(names, "This member must not be combined with `query`.")
                )
            return attrs
        missing = [name for name in ("operator", "state") if name not in attrs]
        if missing:
            raise serializers.ValidationError(dict.fromkeys(missing, "Either this member or `query` is required."))
        return attrs


class StateQuerySerializer(serializers.ModelSerializer[StateQuery]):
    """A query in a list, without its table."""

    class Meta:
        model = StateQuery
        fields: tuple[str, ...] = (
            "id", "checkpoint", "request", "state", "progress", "error", "requested_by", "created_at", "started_at",
            "ended_at",
        )  # fmt: skip


class StateQueryDetailSerializer(StateQuerySerializer):
    """`result` is a table: `columns` with `name`, `type` as in Spark and `is_key`; `rows`; `is_cut`, whether there are
    more rows; and `cursor`, the beginning of the next page.
    """

    result = serializers.JSONField(read_only=True, allow_null=True)

    class Meta(StateQuerySerializer.Meta):
        fields = (*StateQuerySerializer.Meta.fields, "result")


class CheckpointState(StrictView):
    """The states in a checkpoint, from its manifest, and the queries saved with the pipeline."""

    queryset = Checkpoint.objects.select_related("job", "run__version")
    serializer_class = CheckpointStateSerializer

    @extend_schema(responses={200: CheckpointStateSerializer, 409: Problem, 422: Problem})
    def get(self, request: Request, pk: int) -> Response:
        row = self.get_object()
        body = {"states": state_queries.contents(row), "queries": state_queries.saved_queries(row)}
        return Response(CheckpointStateSerializer(body).data)


class StateQueries(ScopedView, generics.ListAPIView[StateQuery]):
    """The queries of a checkpoint's state, newest first. They are deleted after a day."""

    scope = Checkpoint
    queryset = StateQuery.objects.defer("result")
    serializer_class = StateQuerySerializer
    filterset_class = StateQueryFilter

    @extend_schema(request=StateQueryRequest, responses={202: StateQuerySerializer, 409: Problem, 422: Problem})
    def post(self, request: Request, checkpoint: int) -> Response:
        """Requests a page of rows of a state, or the result of saved SQL. Always 202: read Location with `?wait=30`."""
        values, row = self.body(StateQueryRequest), self.parent()
        if "query" in values:
            query = state_queries.request_saved_query(self.user, row, values["query"])
        else:
            arguments = {"key": {}, "cursor": {}, **values}
            query = state_queries.request_rows(self.user, row, **arguments)
        return location_response("api:state-query", query.pk, StateQuerySerializer(query).data)


class StateQueryDetail(AwaitedView):
    """A query, with its table once it has succeeded."""

    queryset = StateQuery.objects.all()
    serializer_class = StateQueryDetailSerializer

    @extend_schema(responses={204: None, 403: Problem})
    def delete(self, request: Request, pk: int) -> Response:
        """Cancels the query. A query that has ended stays as it is."""
        state_queries.cancel(self.user, self.get_object())
        return Response(status=HTTPStatus.NO_CONTENT)


class StateQueryCsv(StrictView):
    """The table of a query that has succeeded as a CSV file."""

    queryset = StateQuery.objects.all()

    @extend_schema(responses={(200, "text/csv"): OpenApiTypes.STR, 409: Problem})
    def get(self, request: Request, pk: int) -> HttpResponseBase:
        query: StateQuery = self.get_object()
        if query.result is None:
            raise Conflict("no-table", f"The query is {query.state} and has no table.")
        return csv_response(query)
