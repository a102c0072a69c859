"""Tokens, pipelines, jobs and versions."""

from http import HTTPStatus
from typing import Any

from django.contrib.auth import authenticate
from django.db import transaction
from django.db.models import OuterRef, Subquery
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
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
from console.accounts.rights import require_upload
from console.accounts.throttling import LoginThrottle
from console.api.activity import AwaitedView
from console.api.base import IF_MATCH, REQUIRED_IF_MATCH, ScopedView, StrictView, location_response
from console.api.filters import JobFilter, VersionFilter
from console.api.idempotency import KEY_HEADER, reused_key
from console.api.json_schemas import integer_from
from console.api.pagination import ByName, NewestPackageFirst
from console.api.parsing import PackageArchive, whole_number
from console.api.serializers.base import Problem
from console.api.serializers.definitions import (
    ConnectionSerializer,
    DifferenceSerializer,
    DifferencesSerializer,
    JobChange,
    JobDetailSerializer,
    JobRequest,
    JobSerializer,
    ListedJobSerializer,
    ListedPackageSerializer,
    PackageSerializer,
    PipelineSerializer,
    VersionDifferencesSerializer,
    VersionRequest,
    VersionSerializer,
)
from console.api.serializers.tokens import LoginRequest, LoginResponse
from console.checkpoints.filters import MAX_BIGINT
from console.housekeeping.packages import delete_package
from console.jobs import editing, services
from console.jobs.differences import compared_versions, differences
from console.jobs.models import Connection, Job, JobVersion, Package, Pipeline
from console.jobs.pipelines import upload_package
from console.jobs.planned_differences import planned_differences
from console.jobs.tags import entity_tag, is_known, require_match
from console.operations.models import OperationKind
from console.operations.services import OperationRequestContext, check_key
from console.operations.services import request as request_operation
from console.runs.selectors import FoundJobs, with_latest_run
from console.uploads import UPLOADER

_VALUES = ("parallelism", "max_parallelism", "params", "settings", "package")  #: of a version


class TokenLogin(StrictView):
    """A new token for a user name and a password. Only this response shows it: the console stores a hash.

    A repetition with the same `Idempotency-Key` replaces the token of the first request, unless it was used already.
    """

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
        key = request.headers.get(KEY_HEADER)
        check_key(key)
        if key is not None and any(issued.scopes != scopes for issued in tokens.issued_by_request(user, key)):
            raise reused_key()
        token = tokens.issue(user, expires_at, scopes=scopes, request_key=key)
        return Response({"token": token.text, "scopes": scopes, "expires_at": expires_at})


class Pipelines(StrictView, generics.ListAPIView[Pipeline]):
    """Pipelines for jobs, with the JSON schema of their parameters."""

    queryset = Pipeline.objects.all()
    serializer_class = PipelineSerializer
    pagination_class = ByName
    query = frozenset({"limit", "cursor"})


class Packages(StrictView, generics.ListAPIView[Package]):
    """Packages: the code of jobs with its dependencies, newest first."""

    queryset = Package.objects.defer("description")
    serializer_class = ListedPackageSerializer
    pagination_class = NewestPackageFirst
    parser_classes = (PackageArchive,)
    query = frozenset({"limit", "cursor"})

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if request.method == "POST":
            require_upload(self.user)  # before the body is read, for its answer or for the digest of its key
        if UPLOADER in request.META:
            request.META[UPLOADER] = self.user.pk
            vars(self)["post"] = self._confirm_authorisation

    @extend_schema(
        request={PackageArchive.media_type: OpenApiTypes.BINARY},
        responses={202: PackageSerializer, 409: Problem, 415: Problem, 422: Problem, 503: Problem},
    )
    def post(self, request: Request) -> Response:
        """Stores the file that `weir package` writes. It is described in the background: read Location with `?wait=30`.

        A package is stored by its digest, so that a repeated upload has no further effect.
        """
        archive: Any = request.data or b""  # an empty mapping if the request has no body
        package = upload_package(self.user, archive)
        return location_response("api:package", package.pk, PackageSerializer(package).data)

    @staticmethod
    def _confirm_authorisation(*_: Any) -> Response:
        """Answers the question of the web server, which has not received the body (`console.uploads`)."""
        return Response(status=HTTPStatus.NO_CONTENT)


class PackageDetail(AwaitedView):
    """A package, with its pipelines once it is described."""

    queryset = Package.objects.all()
    serializer_class = PackageSerializer

    @extend_schema(responses={204: None, 403: Problem, 409: Problem})
    def delete(self, request: Request, pk: str) -> Response:
        """Deletes a package that no version names. It needs the permission `jobs.delete_package`.

        If the storage is away, the package stays in the state `deleting` until the file can be deleted.
        """
        if not delete_package(self.user, pk):
            raise NotFound("There is no such package.")
        return Response(status=HTTPStatus.NO_CONTENT)


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

    queryset = (
        jobs_with_latest().select_related("health", "latest_run").defer("latest_run__live", "latest_run__failure")
    )
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
    """A job with its health. Its `ETag` changes with both; `If-Match` does not compare the health."""

    conditional = True
    queryset = jobs_with_latest().select_related("health", "latest_run__version")
    serializer_class = JobDetailSerializer

    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        job = self.get_object()
        data = self.get_serializer(job).data
        tag = entity_tag(job, data["health"])
        if is_known(tag, request.headers.get("If-None-Match", "")):
            return Response(status=HTTPStatus.NOT_MODIFIED, headers=_tag_headers(tag))
        return Response(data, headers=_tag_headers(tag))

    @extend_schema(
        request=JobChange,
        parameters=[REQUIRED_IF_MATCH],
        responses={200: JobDetailSerializer, 409: Problem, 428: Problem},
    )
    def patch(self, request: Request, pk: int) -> Response:
        """Changes facts of the job, or archives it. Nothing changes if one of the facts is refused.

        Two edits of the same state cannot overwrite each other: `If-Match` is required, else 428.
        """
        if "If-Match" not in request.headers:
            detail = "If-Match: send the ETag of the job that you read, or * to edit any state of it."
            raise Refused("precondition-required", detail, "If-Match", HTTPStatus.PRECONDITION_REQUIRED)
        job, changes = self.get_object(), self.body(JobChange)
        archived = changes.pop("archived", None)
        with transaction.atomic():
            services.lock_job(job)
            require_match(job, request.headers.get("If-Match"))
            if archived is not None:
                editing.archive_job(self.user, job, archived=archived, reason=changes.get("reason", ""))
            editing.edit_job(self.user, job, **changes)
        changed = self.get_object()
        data = self.get_serializer(changed).data
        return Response(data, headers=_tag_headers(entity_tag(changed, data["health"])))


def _tag_headers(tag: str) -> dict[str, str]:
    return {"ETag": tag, "Cache-Control": "no-transform"}


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
        """Adds a version. It is compiled in the background: read Location with `?wait=30`."""
        body, if_match = self.body(VersionRequest), request.headers.get("If-Match")
        version = services.create_version(self.user, self.parent(), **body, if_match=if_match)
        return location_response("api:version", version.pk, VersionSerializer(version).data)


class VersionDifferences(ScopedView):
    """The differences between two versions of a job, or those that a new version would make."""

    serializer_class = VersionRequest
    query = frozenset({"base", "other"})

    @extend_schema(
        parameters=[
            OpenApiParameter(name, integer_from(0), description="Number of a version; default: the newest two")
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


class VersionDetail(AwaitedView):
    """A version, with its graph once it is ready."""

    queryset = JobVersion.objects.select_related("job")
    serializer_class = VersionSerializer

    @extend_schema(responses={204: None, 409: Problem})
    def delete(self, request: Request, pk: int) -> Response:
        """Deletes a version that never ran and was rejected, or whose compilation has failed and is repeated."""
        editing.delete_version(self.user, self.get_object())
        return Response(status=HTTPStatus.NO_CONTENT)
