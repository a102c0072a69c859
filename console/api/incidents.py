"""Incidents: times in which a job was not well, with the notes of users."""

from http import HTTPStatus
from typing import Any, Final

from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response

from console.alerts.services import silence
from console.api.base import StrictView
from console.api.serializers.base import Problem
from console.api.serializers.incidents import (
    IncidentDetailSerializer,
    IncidentNoteSerializer,
    IncidentSerializer,
    NoteRequest,
    SilenceRequest,
    SilenceSerializer,
)
from console.checkpoints.filters import WholeNumber
from console.incidents import services
from console.incidents.models import Incident

MAX_ROWS: Final = 50  #: newest notes and alerts of an incident


class IncidentFilter(filters.FilterSet):
    """Incidents by job, or the open incidents."""

    job = WholeNumber()
    open = filters.BooleanFilter(field_name="closed_at", lookup_expr="isnull", label="has not ended")

    class Meta:
        model = Incident
        fields = ()


class Incidents(StrictView, generics.ListAPIView[Incident]):
    """The incidents of all jobs, newest first. `?open=true`: the jobs that are not well now, or were until just now."""

    queryset = Incident.objects.select_related("job", "taken_by")
    serializer_class = IncidentSerializer
    filterset_class = IncidentFilter


class IncidentView(StrictView):
    queryset = Incident.objects.select_related("job", "taken_by")
    serializer_class = IncidentDetailSerializer

    def detail(self, incident: Any) -> Response:
        incident.newest_notes = incident.notes.select_related("created_by").order_by("-created_at", "-pk")[:MAX_ROWS]
        incident.newest_deliveries = incident.deliveries.select_related("channel")[:MAX_ROWS]
        return Response(self.get_serializer(incident).data)


class IncidentDetail(IncidentView):
    """An incident."""

    @extend_schema(responses={200: IncidentDetailSerializer, 404: Problem})
    def get(self, request: Request, pk: int) -> Response:
        return self.detail(self.get_object())


class IncidentTake(IncidentView):
    """The user who works on an incident. The alerts of an incident that a user has taken are not repeated."""

    @extend_schema(request=None, responses={200: IncidentDetailSerializer, 403: Problem, 409: Problem})
    def post(self, request: Request, pk: int) -> Response:
        """Takes the incident, instead of the user who had it."""
        incident = self.get_object()
        services.take(self.user, incident)
        return self.detail(incident)

    @extend_schema(responses={200: IncidentDetailSerializer, 403: Problem})
    def delete(self, request: Request, pk: int) -> Response:
        """Releases the incident."""
        incident = self.get_object()
        services.release(self.user, incident)
        return self.detail(incident)


class IncidentNotes(IncidentView):
    """Notes on an incident."""

    @extend_schema(request=NoteRequest, responses={201: IncidentNoteSerializer, 403: Problem, 422: Problem})
    def post(self, request: Request, pk: int) -> Response:
        """Adds a note, also to an incident that has ended."""
        note = services.add_note(self.user, self.get_object(), self.body(NoteRequest)["text"])
        note.refresh_from_db()
        return Response(IncidentNoteSerializer(note).data, status=HTTPStatus.CREATED)


class IncidentSilence(IncidentView):
    """Silences of the job of an incident."""

    @extend_schema(request=SilenceRequest, responses={201: SilenceSerializer, 403: Problem, 422: Problem})
    def post(self, request: Request, pk: int) -> Response:
        """Silences the alerts of the job for some hours. The end of an incident is sent nevertheless."""
        row = silence(self.user, self.get_object(), self.body(SilenceRequest)["hours"])
        return Response(SilenceSerializer(row).data, status=HTTPStatus.CREATED)
