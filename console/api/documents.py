"""The page of the API's documentation, and the answer to a route that does not exist."""

from typing import Any

from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularSwaggerSplitView
from rest_framework.exceptions import NotFound
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.views import APIView


class Docs(SpectacularSwaggerSplitView):
    """Swagger's page without inline script or style, which the content security policy forbids."""

    template_name = "api/docs.html"


class NoSuchRoute(APIView):
    """Programs read problems, not pages."""

    permission_classes = (AllowAny,)

    @extend_schema(exclude=True)
    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        raise NotFound(f"There is no route {request.path}.")
