"""The logs of a run: of its job master and of its slots, as the page of the run shows them."""

from typing import Any

from django.http import Http404
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics, serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.refusals import InvalidField
from console.api.base import StrictView
from console.api.json_schemas import integer_from
from console.api.parsing import number_between, whole_number
from console.api.serializers.base import Problem
from console.checkpoints.filters import MAX_BIGINT
from console.jobs.models import Run
from console.runs.logs import LEVELS, LogFilter, LogSecrets, log_file, log_part, log_size, run_with_slot_logs, slot_file

MIN_BYTES, MAX_BYTES, DEFAULT_BYTES = 1024, 1024 * 1024, 64 * 1024  #: of a log, in an answer
_MAX_SLOT = 2**31 - 1


class LogFileSerializer(serializers.Serializer[Any]):
    slot = serializers.IntegerField(allow_null=True, help_text="Null: the job master.")
    host = serializers.CharField(allow_blank=True, help_text="Empty if it is not known.")
    path = serializers.CharField()
    size_bytes = serializers.IntegerField(allow_null=True, help_text="Null: the console's host cannot read the file.")
    in_log_of_master = serializers.BooleanField(help_text="The slot writes into the log of the job master.")


class LogFilesSerializer(serializers.Serializer[Any]):
    logs = LogFileSerializer(many=True, help_text="The job master, then the slots that report a log.")


class LogLineSerializer(serializers.Serializer[Any]):
    """A line without secrets. A plain line has the level of the line before it."""

    time = serializers.DateTimeField(allow_null=True, help_text="Null for a plain line, such as of a traceback.")
    level = serializers.ChoiceField(choices=LEVELS)
    text = serializers.CharField()


class LogPartSerializer(serializers.Serializer[Any]):
    """A part of a log. The next part begins at `end`: poll with `offset=end` to follow the log."""

    begin = serializers.IntegerField(help_text="First byte of the part.")
    end = serializers.IntegerField(help_text="First byte after the part.")
    size_bytes = serializers.IntegerField(source="size", help_text="Size of the file.")
    lines = LogLineSerializer(many=True)


class RunLogs(StrictView, generics.GenericAPIView[Run]):
    """The logs of a run."""

    queryset = Run.objects.all()
    serializer_class = LogFilesSerializer

    @extend_schema(responses={200: LogFilesSerializer, 404: Problem})
    def get(self, request: Request, pk: int) -> Response:
        run, slots = run_with_slot_logs(self.get_queryset(), pk)
        file = log_file(run)
        logs = [
            {"slot": None, "host": run.lease_owner.partition(":")[0], "path": str(file),
             "size_bytes": log_size(file) if file.is_file() else None, "in_log_of_master": False}
        ]  # fmt: skip
        logs += [
            {"slot": each.index, "host": each.host, "path": each.path,
             "size_bytes": log_size(each.file) if each.file else None, "in_log_of_master": each.is_of_master}
            for each in slots
        ]  # fmt: skip
        return Response(self.get_serializer({"logs": logs}).data)


class RunLog(StrictView, generics.GenericAPIView[Run]):
    """A part of a log: its end, or the lines from an offset on."""

    queryset = Run.objects.select_related("job", "version")
    serializer_class = LogPartSerializer
    query = frozenset({"slot", "offset", "limit", "level", "text"})

    @extend_schema(
        parameters=[
            OpenApiParameter("slot", integer_from(0), description="Index of a slot; absent: the job master"),
            OpenApiParameter("offset", integer_from(0), description="First byte; absent: the end of the file"),
            OpenApiParameter(
                "limit", integer_from(MIN_BYTES, MAX_BYTES),
                description=f"Bytes of the file to read, from {MIN_BYTES} to {MAX_BYTES}; {DEFAULT_BYTES} by default. "
                "A longer line is left out.",
            ),
            OpenApiParameter("level", enum=LEVELS, description="The least level"),
            OpenApiParameter("text", str, description="A text in the line, in any letter case"),
        ],
        responses={200: LogPartSerializer, 404: Problem, 422: Problem},
    )  # fmt: skip
    def get(self, request: Request, pk: int) -> Response:
        """The whole lines of the part that the filter accepts, without secrets.

        404 if the console's host cannot read the file. A line whose end is not written yet is in a later part.
        """
        query = request.query_params
        if (level := query.get("level", LEVELS[0])) not in LEVELS:
            raise InvalidField("level", f"must be one of {', '.join(LEVELS)}, not {level!r}")
        slot = whole_number("slot", query["slot"], _MAX_SLOT) if "slot" in query else None
        begin = whole_number("offset", query["offset"], MAX_BIGINT) if "offset" in query else None
        limit = number_between("limit", query.get("limit", str(DEFAULT_BYTES)), MIN_BYTES, MAX_BYTES)
        run, slots = run_with_slot_logs(self.get_queryset(), pk)
        file = log_file(run) if slot is None else slot_file(slots, slot)
        part = log_part(file, LogSecrets.of(run), begin, limit, is_whole=True) if file else None
        if part is None:
            raise Http404("The console's host cannot read this log.")
        lines = part.lines(LogFilter.of(query))
        return Response(
            self.get_serializer({"begin": part.begin, "end": part.end, "size": part.size, "lines": lines}).data
        )
