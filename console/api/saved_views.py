"""The saved views of the list of jobs, of the user of the request."""

from http import HTTPStatus

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics, serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.models import SavedView
from console.accounts.rights import require_own_writes
from console.accounts.saved_views import save_view, views_of
from console.api.base import StrictView
from console.api.serializers.base import Problem, StrictSerializer

_ACT = "save or delete views"


class SavedViewRequest(StrictSerializer):
    name = serializers.CharField(max_length=SavedView.MAX_NAME)
    query = serializers.CharField(
        allow_blank=True,
        help_text="The query string of an address of the list, such as `state=failed&sort=-rate`. Only filters and the "
        "order are kept.",
    )


class SavedViewSerializer(serializers.ModelSerializer[SavedView]):
    class Meta:
        model = SavedView
        fields = ("id", "name", "query")


class OwnViews(StrictView):
    queryset = SavedView.objects.all()
    serializer_class = SavedViewSerializer
    pagination_class = None

    def get_queryset(self) -> QuerySet[SavedView]:
        return super().get_queryset().none() if getattr(self, "swagger_fake_view", False) else views_of(self.user)


class SavedViews(OwnViews, generics.ListAPIView[SavedView]):
    """The saved views of the user, by name."""

    @extend_schema(
        request=SavedViewRequest,
        responses={200: SavedViewSerializer, 201: SavedViewSerializer, 403: Problem, 409: Problem, 422: Problem},
    )
    def post(self, request: Request) -> Response:
        """Saves filters under a name. A view of that name gets the new filters (200)."""
        require_own_writes(self.user, _ACT)
        body = self.body(SavedViewRequest)
        view, is_new = save_view(self.user, body["name"], body["query"])
        return Response(self.get_serializer(view).data, status=HTTPStatus.CREATED if is_new else HTTPStatus.OK)


class SavedViewDetail(OwnViews):
    """The deletion of a saved view of the user."""

    @extend_schema(responses={204: None, 403: Problem, 404: Problem})
    def delete(self, request: Request, pk: int) -> Response:
        require_own_writes(self.user, _ACT)
        self.get_object().delete()
        return Response(status=HTTPStatus.NO_CONTENT)
