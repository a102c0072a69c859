"""The pages of a checkpoint's state: contents, queries and their tables."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from statistics import median
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_POST, require_safe

from console import formats
from console.accounts.refusals import Refused
from console.checkpoints import state_queries
from console.checkpoints.models import Checkpoint, QueryState, StateQuery, large_columns, state_title
from console.checkpoints.state_queries import WINDOW_TIMES
from console.checkpoints.tables import csv_response
from console.checkpoints.timed_reads import recorded_states_in_time
from console.ui.live.page import LivePage, PageContent, page, require_login, user_of
from console.ui.live.revision import revision
from console.ui.paging import whole_number
from runtime.core.snapshot.contents import StoredState

_RECENT_QUERIES = 10
_NUMBER_TYPES = ("tinyint", "smallint", "int", "bigint", "float", "double")
#: Arrow's names of types that Spark calls otherwise, as the columns of results do.
_SPARK_TYPES = {"bool": "boolean", "int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint",
                "large_string": "string", "large_binary": "binary", "date32[day]": "date"}  # fmt: skip
_KEY_PREFIX = "key."  #: prefix of key columns in the form
#: Suffixes of the columns that hold an aggregate, as in `mean_delay:sum` (`runtime.operators.aggregates`).
_ACCUMULATED = {"sum": "sum", "count": "count", "min": "minimum", "max": "maximum"}
_EARLIER_QUERIES = 5  #: that the usual duration comes from


@require_safe
@require_login
def contents(request: HttpRequest, pk: int) -> HttpResponse:
    """Operators with their states, from the manifest; the pipeline's queries; and the newest results."""
    checkpoint = get_object_or_404(Checkpoint.objects.select_related("job", "run__version"), pk=pk)
    states, refusal = _states(checkpoint)
    key = (request.GET.get("operator"), request.GET.get("state"))
    selection = next((state for state in states if (state.operator, state.name) == key), None)
    context = {
        "checkpoint": checkpoint,
        "job": checkpoint.job,
        "states": states,
        "refusal": refusal,
        "chosen": selection,
        "chosen_title": state_title(selection.operator, selection.name) if selection else "",
        "chosen_keys": [_key_field(name, kind, "") for name, kind in selection.keys.items()] if selection else [],
        "queries": state_queries.saved_queries(checkpoint),
        "recent": StateQuery.objects.filter(checkpoint=checkpoint)
        .defer("result")
        .select_related("requested_by")[:_RECENT_QUERIES],
    }
    return page(request, "checkpoints/state.html", context)


@require_POST
@require_login
def ask(request: HttpRequest, pk: int) -> HttpResponse:
    """Requests a page of rows or the result of saved SQL, and redirects to the page of the query."""
    checkpoint = get_object_or_404(Checkpoint.objects.select_related("job"), pk=pk)
    try:
        query = _request_query(request, checkpoint)
    except Refused as refused:
        messages.error(request, refused.detail)
        return redirect("ui:state", checkpoint.pk)
    return redirect("ui:state_query", query.pk)


class StateQueryPage(LivePage):
    """A query: its progress, its table, or its error."""

    template, blocks = "checkpoints/state_query.html", "checkpoints/_state_query.html"

    def open(self, pk: int) -> None:
        self.pk = pk
        self.queries = StateQuery.objects.select_related("checkpoint__job", "requested_by").defer(
            *large_columns("checkpoint")
        )
        self.query = get_object_or_404(self.queries, pk=pk)

    def content(self) -> PageContent:
        table = self.query.result or {}
        columns = table.get("columns", ())
        numbers = [column["type"] in _NUMBER_TYPES for column in columns]
        times = [column["name"] in WINDOW_TIMES and column["type"] == "bigint" for column in columns]
        fields = self.query.request.get("key", {})
        texts = {name: _shown_key(name, value) for name, value in fields.items()}
        return {
            "query": self.query,
            "checkpoint": self.query.checkpoint,
            "job": self.query.checkpoint.job,
            "table": {**table, "columns": [{**column, "note": _note(column)} for column in columns]},
            "reads": _read_state(self.query) if self.query.is_active else None,
            "usual_ms": _usual_ms(self.query) if self.query.is_active else None,
            "number_types": _NUMBER_TYPES,
            "rows": [tuple(zip(row, numbers, map(_time, row, times), strict=True)) for row in table.get("rows", ())],
            "asked": texts,
            "is_page": table.get("is_cut") or self.query.request.get("cursor"),
            "keys": [_key_field(key["name"], key["type"], texts.get(key["name"], "")) for key in table.get("keys", ())],
        }

    def rows(self) -> str:
        return revision(self.request, [(self.queries.filter(pk=self.pk), 1)])


query = StateQueryPage.view()


@require_POST
@require_login
def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    query = get_object_or_404(StateQuery, pk=pk)
    try:
        state_queries.cancel(user_of(request), query)
    except Refused as refused:
        messages.error(request, refused.detail)
    return redirect("ui:state_query", query.pk)


@require_safe
@require_login
def csv(request: HttpRequest, pk: int) -> HttpResponseBase:
    query = get_object_or_404(StateQuery, pk=pk)
    if query.result is None:
        return HttpResponse("The query has no table.", status=HTTPStatus.CONFLICT, content_type="text/plain")
    return csv_response(query)


def _key_field(name: str, kind: str, value: Any) -> tuple[str, str, Any]:
    """A key column with Spark's name of its type, and the value in its field."""
    spark_type = _SPARK_TYPES.get(kind, kind)
    is_time = name in WINDOW_TIMES and spark_type == "bigint"
    return name, f"{spark_type}: ms, or a time such as 2013-06-12 08:00 in UTC" if is_time else spark_type, value


def _shown_key(name: str, value: Any) -> Any:
    """A time of a window or a session as it is typed; any other value as it is."""
    if name not in WINDOW_TIMES or not str(value).isdecimal():
        return value
    try:
        return datetime.fromtimestamp(int(value) / 1000, UTC).replace(tzinfo=None).isoformat(" ")
    except (OverflowError, ValueError, OSError):
        return value


def _note(column: Mapping[str, Any]) -> str:
    """The type of a column. A column with a part of an aggregate has the name of the aggregate, which is no result."""
    name, _, suffix = column["name"].rpartition(":")
    part = f" · {_ACCUMULATED[suffix]} kept for {name}" if name and suffix in _ACCUMULATED else ""
    return f"{column['type']}{' · key' if column['is_key'] else part}"


def _read_state(query: StateQuery) -> StoredState | None:
    """The state whose rows an active query reads; None for SQL, and without a readable manifest."""
    request = query.request
    if request["kind"] == "sql":
        return None
    try:
        states = recorded_states_in_time(query.checkpoint)
    except Refused:
        return None
    key = (request["operator"], request["state"])
    return next((state for state in states if (state.operator, state.name) == key and state.kind.has_rows), None)


def _usual_ms(query: StateQuery) -> float | None:
    """The median duration of the newest queries of this kind on snapshots of the job; None without any."""
    earlier = StateQuery.objects.filter(
        checkpoint__job=query.checkpoint.job_id, request__kind=query.request["kind"], state=QueryState.SUCCEEDED
    )
    times = earlier.values_list("created_at", "ended_at")[:_EARLIER_QUERIES]
    took = [(ended - created) / timedelta(milliseconds=1) for created, ended in times if ended]
    return median(took) if took else None


def _time(value: Any, is_time: bool) -> str:
    """The event time of a cell in UTC; "" unless it is the begin or the end of a window or a session."""
    return formats.event_time(value) if is_time and isinstance(value, int) else ""


def _states(checkpoint: Checkpoint) -> tuple[tuple[StoredState, ...], str]:
    """The states and an empty text, or no states and the reason."""
    try:
        return state_queries.contents(checkpoint), ""
    except Refused as refused:
        return (), refused.detail


def _request_query(request: HttpRequest, checkpoint: Checkpoint) -> StateQuery:
    form, user = request.POST, user_of(request)
    if "query" in form:
        return state_queries.request_saved_query(user, checkpoint, form["query"])
    key: dict[str, Any] = {
        name.removeprefix(_KEY_PREFIX): value for name, value in form.items() if name.startswith(_KEY_PREFIX) and value
    }
    position = {name: whole_number(form.get(name)) for name in ("group", "skip")}
    cursor = {name: value for name, value in position.items() if value is not None}
    operator, state = form.get("operator", ""), form.get("state", "")
    return state_queries.request_rows(user, checkpoint, operator=operator, state=state, key=key, cursor=cursor)
