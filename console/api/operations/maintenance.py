"""Maintenance mode."""

from http import HTTPStatus

from drf_spectacular.utils import extend_schema
from rest_framework import generics
from rest_framework.request import Request
from rest_framework.response import Response

from console.api.base import StrictView
from console.api.serializers.base import Problem
from console.api.serializers.operations import MaintenanceRequest, MaintenanceSerializer
from console.operations.maintenance import begin_maintenance, end_maintenance
from console.operations.models import Maintenance


class MaintenanceMode(StrictView, generics.ListAPIView[Maintenance]):
    """The times of maintenance, newest first; an entry without `ended_at` is under way.

    During maintenance, operations that start or change a run, or touch its files, are refused (`maintenance`).
    """

    queryset = Maintenance.objects.select_related("started_by", "ended_by")
    serializer_class = MaintenanceSerializer
    query = frozenset({"limit", "cursor"})

    @extend_schema(
        request=MaintenanceRequest,
        responses={201: MaintenanceSerializer, 403: Problem, 409: Problem},
    )
    def post(self, request: Request) -> Response:
        """Begins maintenance. The reason is part of each refusal, and of the banner on all pages."""
        row = begin_maintenance(self.user, self.body(MaintenanceRequest)["reason"])
        return Response(self.get_serializer(row).data, status=HTTPStatus.CREATED)

    @extend_schema(responses={200: MaintenanceSerializer, 403: Problem, 409: Problem})
    def delete(self, request: Request) -> Response:
        """Ends the maintenance that is under way."""
        return Response(self.get_serializer(end_maintenance(self.user)).data)
