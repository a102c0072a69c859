"""The API's documentation page, and the problem response for unknown routes."""

from typing import Any

from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularSwaggerSplitView
from rest_framework.exceptions import NotFound
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.views import APIView


class Docs(SpectacularSwaggerSplitView):
    """Swagger UI without inline script or style, which the content security policy forbids."""

    template_name = "api/docs.html"


class NoSuchRoute(APIView):
    """404 as a problem document instead of an HTML page."""

    permission_classes = (AllowAny,)

    @extend_schema(exclude=True)
    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        raise NotFound(f"There is no route {request.path}.")
