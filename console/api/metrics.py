"""The history of a run's numbers."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request

from console.accounts.refusals import InvalidField
from console.api.base import ScopedView
from console.api.json_schemas import integer_from
from console.api.parsing import whole_number
from console.api.serializers.base import Problem
from console.jobs.models import Run
from console.metrics import selectors
from console.metrics.gaps import RunTime, find_gaps

DEFAULT_RANGE: Final = timedelta(hours=1)
_MAX_STEP_S: Final = selectors.RESOLUTIONS_S[-1]


def _columns_serializer(name: str, numbers: tuple[str, ...]) -> type[serializers.Serializer[Any]]:
    """Serializer with a list per number, with an entry per interval."""
    numeric = {number: serializers.ListField(child=serializers.FloatField(allow_null=True)) for number in numbers}
    return type(name, (serializers.Serializer,), numeric)


OperatorNumbersSerializer = _columns_serializer("OperatorNumbersSerializer", selectors.OPERATOR_NUMBERS)
RunNumbersSerializer = _columns_serializer("RunNumbersSerializer", selectors.RUN_NUMBERS)


class GapSerializer(serializers.Serializer[Any]):
    """A time in which the run was up and no numbers arrived."""

    begin = serializers.DateTimeField()
    end = serializers.DateTimeField()


class RunMetricsSerializer(serializers.Serializer[Any]):
    begin = serializers.DateTimeField(help_text="Start of the first interval.")
    end = serializers.DateTimeField(help_text="End of the last interval.")
    step = serializers.IntegerField(help_text="Seconds per interval.")
    run = RunNumbersSerializer(allow_null=True, help_text="The run as a whole; null if an operator is asked for.")
    operators = serializers.DictField(child=OperatorNumbersSerializer(), help_text="By uid.")
    gaps = GapSerializer(many=True, help_text="Oldest first. Numbers of the newest 15 s may be on their way.")


class SubtaskMetricsSerializer(serializers.Serializer[Any]):
    at = serializers.ListField(
        child=serializers.DateTimeField(),
        help_text="Start of each interval of 5 s. With many subtasks, intervals are left out.",
    )
    index = serializers.ListField(
        child=serializers.ListField(child=serializers.IntegerField()), help_text="The subtasks in each interval."
    )
    numbers = serializers.DictField(
        child=serializers.ListField(child=serializers.ListField(child=serializers.FloatField(allow_null=True))),
        help_text="By name: a list per interval, with an entry per subtask.",
    )


_OPERATOR = OpenApiParameter("operator", str, description="uid of an operator; only its numbers are returned")


class _OfRun(ScopedView):
    scope = Run

    def operator(self, run: Run) -> str | None:
        """The operator of the query, if any."""
        uid = self.request.GET.get("operator")
        operators = (run.version.graph or {}).get("operators", ())
        if uid is not None and uid not in {operator["uid"] for operator in operators}:
            raise InvalidField("operator", f"the run has no operator {uid!r}")
        return uid


class RunMetrics(_OfRun):
    """The numbers of a run over time, as columns on an even grid of intervals."""

    serializer_class = RunMetricsSerializer
    query = frozenset({"from", "to", "step", "operator"})

    @extend_schema(
        parameters=[
            OpenApiParameter("from", datetime, description="By default an hour before `to`"),
            OpenApiParameter("to", datetime, description="By default now"),
            OpenApiParameter("step", integer_from(0), description="Least seconds per interval; default: the finest"),
            _OPERATOR,
        ],
        responses={200: RunMetricsSerializer, 400: Problem, 404: Problem, 422: Problem},
    )
    def get(self, request: Request, run: int) -> HttpResponse:
        """Rates per second, fractions of time, lags, sizes and checkpoint phases.

        The answer has at most 500 intervals, and fewer for many operators. Its `step` is the finest that fits. Flows
        are means over an interval, levels the highest of it, and null is an interval without numbers. `gaps` are such
        intervals in which the run was up.
        """
        of, query, now = self.parent(), request.query_params, datetime.now(UTC)
        end = _time("to", query["to"]) if "to" in query else now
        begin = _time("from", query["from"]) if "from" in query else end - DEFAULT_RANGE
        step_s = whole_number("step", query["step"], _MAX_STEP_S) if "step" in query else 0
        operator = self.operator(of)
        series = 1 if operator is not None else 1 + len((of.version.graph or {}).get("operators", ()))
        history = selectors.history(of, selectors.choose_grid(begin, end, step_s, series, now), operator)
        grid = history.grid
        numbers = history.run or next(iter(history.operators.values()))
        gaps = find_gaps(numbers["records_in_per_s"], [RunTime(of.pk, of.started_at, of.ended_at)], grid, now)
        columns = {"run": history.run, "operators": history.operators, "gaps": gaps}
        return _json_response({"begin": grid.begin, "end": grid.end, "step": grid.step_s, **columns})


class RunSubtaskMetrics(_OfRun):
    """The numbers of an operator's subtasks in the last hour."""

    serializer_class = SubtaskMetricsSerializer
    query = frozenset({"operator"})

    @extend_schema(
        parameters=[OpenApiParameter("operator", str, required=True, description="uid of an operator")],
        responses={200: SubtaskMetricsSerializer, 400: Problem, 404: Problem, 422: Problem},
    )
    def get(self, request: Request, run: int) -> HttpResponse:
        """Intervals of 5 s, oldest first. Records are those of the interval. Wide operators have fewer intervals."""
        of = self.parent()
        operator = self.operator(of)
        if operator is None:
            raise InvalidField("operator", "is required")
        history = selectors.subtask_history(of, operator, datetime.now(UTC))
        return _json_response({"at": history.at, "index": history.index, "numbers": history.numbers})


def _json_response(body: Any) -> HttpResponse:
    """The response without a renderer: Python's JSON encoder took 140 ms for 27,000 numbers."""
    return HttpResponse(msgspec.json.encode(body), content_type="application/json")


def _time(name: str, text: str) -> datetime:
    try:
        at: datetime = serializers.DateTimeField().run_validation(text)
        at.timestamp()
    except (serializers.ValidationError, OverflowError, ValueError) as error:
        raise InvalidField(name, f"must be a time such as 2026-01-31T12:00:00Z, not {text[:40]!r}") from error
    if not 1_980 <= at.year <= 2_999:
        raise InvalidField(name, "must be a time between 1980 and 2999")
    return at
