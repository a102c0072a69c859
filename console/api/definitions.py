"""Tokens, pipelines, jobs and versions."""

from http import HTTPStatus
from typing import Any

from django.contrib.auth import authenticate
from django.db import transaction
from django.db.models import OuterRef, Subquery
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import generics
from rest_framework.exceptions import NotFound
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts import tokens
from console.accounts.middleware import request_id_of
from console.accounts.models import all_scopes
from console.accounts.refusals import InvalidField, Refused
from console.accounts.throttling import LoginThrottle
from console.api.base import IF_MATCH, ScopedView, StrictView, location_response
from console.api.filters import JobFilter, VersionFilter
from console.api.pagination import ByName
from console.api.parsing import whole_number
from console.api.serializers.base import Problem
from console.api.serializers.definitions import (
    ConnectionSerializer,
    DifferenceSerializer,
    DifferencesSerializer,
    JobChange,
    JobRequest,
    JobSerializer,
    ListedJobSerializer,
    PipelineSerializer,
    VersionDifferencesSerializer,
    VersionRequest,
    VersionSerializer,
)
from console.api.serializers.tokens import LoginRequest, LoginResponse
from console.checkpoints.filters import MAX_BIGINT
from console.jobs import editing, services
from console.jobs.differences import compared_versions, differences
from console.jobs.models import Connection, Job, JobVersion, Pipeline
from console.jobs.planned_differences import planned_differences
from console.jobs.tags import entity_tag, require_match, tag_matches
from console.operations.models import OperationKind
from console.operations.services import OperationRequestContext
from console.operations.services import request as request_operation
from console.runs.selectors import FoundJobs, with_latest_run

_VALUES = ("parallelism", "max_parallelism", "params", "settings")  #: of a version


class TokenLogin(StrictView):
    """A new token for a user name and a password. Only this response shows it: the console stores a hash."""

    authentication_classes = ()
    permission_classes = (AllowAny,)
    throttle_classes = (LoginThrottle,)
    serializer_class = LoginRequest

    @extend_schema(responses={200: LoginResponse, 401: Problem}, auth=[])
    def post(self, request: Request) -> Response:
        body = self.body(LoginRequest)
        user = authenticate(request._request, username=body["username"], password=body["password"])
        if user is None:
            raise Refused("wrong-credentials", "The user name or password is wrong.", status=HTTPStatus.UNAUTHORIZED)
        expires_at = body["expires_at"] if "expires_at" in body else tokens.default_expiry()
        if expires_at is not None and expires_at <= timezone.now():
            raise InvalidField("expires_at", "must lie in the future")
        scopes = [scope for scope in all_scopes() if scope in body.get("scopes", ())]
        token = tokens.issue(user, expires_at, scopes=scopes)
        return Response({"token": token.text, "scopes": scopes, "expires_at": expires_at})


class Pipelines(StrictView, generics.ListAPIView[Pipeline]):
    """Pipelines for jobs, with the JSON schema of their parameters."""

    queryset = Pipeline.objects.all()
    serializer_class = PipelineSerializer
    pagination_class = ByName
    query = frozenset({"limit", "cursor"})


class Connections(StrictView, generics.ListAPIView[Connection]):
    """Named connections, which administrators make. Secrets are references."""

    queryset = Connection.objects.all()
    serializer_class = ConnectionSerializer
    pagination_class = ByName
    query = frozenset({"limit", "cursor"})


def jobs_with_latest() -> FoundJobs:
    """Jobs with the id and state of the latest run and the id of the newest version."""
    newest = JobVersion.objects.filter(job=OuterRef("pk")).order_by("-number")
    jobs: FoundJobs = with_latest_run().annotate(newest_version=Subquery(newest.values("pk")[:1]))
    return jobs


class Jobs(StrictView, generics.ListAPIView[Job]):
    """Jobs, newest first, with their health."""

    queryset = jobs_with_latest().select_related("health")
    serializer_class = ListedJobSerializer
    filterset_class = JobFilter

    @extend_schema(request=JobRequest, responses={201: JobSerializer, 409: Problem})
    def post(self, request: Request) -> Response:
        body = self.body(JobRequest)
        version, starts, like = body.pop("version", None), body.pop("start"), body.pop("duplicate_of", None)
        if starts and version is None and like is None:
            raise InvalidField("start", "needs a version")
        with transaction.atomic():
            if like is None:
                job = services.create_job(self.user, **body)
            else:
                job = editing.duplicate_definition(self.user, _version_to_duplicate(like), **body)
            if version is not None:
                services.create_version(self.user, job, **version)
            if starts:
                context = OperationRequestContext(user=self.user, request_id=request_id_of(request._request))
                request_operation(context, job, OperationKind.START, {"when_ready": True})
        return location_response("api:job", job.pk, JobSerializer(job).data, HTTPStatus.CREATED)


def _version_to_duplicate(pk: int) -> JobVersion:
    version = JobVersion.objects.select_related("job").filter(pk=pk).first()
    if version is None:
        raise InvalidField("duplicate_of", f"there is no version with the id {pk}")
    return version


class JobDetail(StrictView, generics.RetrieveAPIView[Job]):
    """A job. Its `ETag` changes with its definition and with the state of its runs."""

    conditional = True
    queryset = jobs_with_latest()
    serializer_class = JobSerializer

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        job = self.get_object()
        tag = entity_tag(job)
        if tag_matches(tag, request.headers.get("If-None-Match", "")):
            return Response(status=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})
        return Response(self.get_serializer(job).data, headers={"ETag": tag})

    @extend_schema(
        request=JobChange,
        parameters=[IF_MATCH],
        responses={200: JobSerializer, 409: Problem, 412: Problem},
    )
    def patch(self, request: Request, pk: int) -> Response:
        """Changes facts of the job, or archives it. Nothing changes if one of the facts is refused."""
        job, changes = self.get_object(), self.body(JobChange)
        archived = changes.pop("archived", None)
        with transaction.atomic():
            services.lock_job(job)
            require_match(job, request.headers.get("If-Match"))
            if archived is not None:
                editing.archive_job(self.user, job, archived=archived, reason=changes.get("reason", ""))
            editing.edit_job(self.user, job, **changes)
        changed = self.get_object()
        return Response(self.get_serializer(changed).data, headers={"ETag": entity_tag(changed)})


class Versions(ScopedView, generics.ListAPIView[JobVersion]):
    """The versions of a job, newest first."""

    conditional = True

    queryset = JobVersion.objects.select_related("job")
    serializer_class = VersionSerializer
    filterset_class = VersionFilter

    @extend_schema(
        request=VersionRequest,
        parameters=[IF_MATCH],
        responses={202: VersionSerializer, 412: Problem, 422: Problem},
    )
    def post(self, request: Request, job: int) -> Response:
        """Adds a version. It is compiled in the background: poll Location until its state is ready or rejected."""
        body, if_match = self.body(VersionRequest), request.headers.get("If-Match")
        version = services.create_version(self.user, self.parent(), **body, if_match=if_match)
        return location_response("api:version", version.pk, VersionSerializer(version).data)


class VersionDifferences(ScopedView):
    """The differences between two versions of a job, or those that a new version would make."""

    serializer_class = VersionRequest
    query = frozenset({"base", "other"})

    @extend_schema(
        parameters=[
            OpenApiParameter(name, int, description="Number of a version; without both, the newest two are compared")
            for name in ("base", "other")
        ],
        responses={200: VersionDifferencesSerializer, 404: Problem, 422: Problem},
    )
    def get(self, request: Request, job: int) -> Response:
        """The changes from `base` to `other`. Secrets are masked."""
        of = self.parent()
        numbers = [self._number(request, name) for name in ("base", "other")]
        base, other = compared_versions(of, *numbers)
        if base is None or other is None:
            raise NotFound("The job has no such versions.")
        changes = differences(base, other, services.pipeline_schema(of.pipeline))
        body = {"base": base.number, "other": other.number, "differences": changes}
        return Response(VersionDifferencesSerializer(body).data)

    def _number(self, request: Request, name: str) -> int | None:
        if "base" not in request.query_params and "other" not in request.query_params:
            return None
        if (text := request.query_params.get(name)) is None:
            raise InvalidField(name, "must be given beside the other version")
        return whole_number(name, text, MAX_BIGINT)

    @extend_schema(
        request=VersionRequest,
        responses={200: DifferencesSerializer, 403: Problem, 422: Problem},
    )
    def post(self, request: Request, job: int) -> Response:
        """The changes that a version would make. It is validated, but not created."""
        for name in self.query & set(request.query_params):
            raise InvalidField(name, "compares two versions by GET; a POST compares the body with the newest version")
        body = self.body(VersionRequest)
        values = {name: body[name] for name in _VALUES if name in body}
        changes = planned_differences(self.user, self.parent(), values)
        return Response({"differences": DifferenceSerializer(changes, many=True).data})


class EqualVersion(StrictView):
    """The values of an earlier version as a new version of its job."""

    queryset = JobVersion.objects.select_related("job")
    serializer_class = VersionSerializer

    @extend_schema(request=None, responses={202: VersionSerializer, 409: Problem})
    def post(self, request: Request, pk: int) -> Response:
        """Adds a version that is equal to this version. If the newest is equal already, it is returned."""
        version = editing.make_equal(self.user, self.get_object())
        return location_response("api:version", version.pk, VersionSerializer(version).data)


class VersionDetail(StrictView, generics.RetrieveAPIView[JobVersion]):
    """A version, with its graph once it is ready."""

    queryset = JobVersion.objects.select_related("job")
    serializer_class = VersionSerializer

    @extend_schema(responses={204: None, 409: Problem})
    def delete(self, request: Request, pk: int) -> Response:
        """Deletes a version that was rejected and never ran."""
        editing.delete_version(self.user, self.get_object())
        return Response(status=HTTPStatus.NO_CONTENT)
