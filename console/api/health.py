"""Liveness and readiness, for load balancers and supervisors. They need no login."""

from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from console.operations.readiness import READINESS, Readiness


@never_cache
@require_safe
def livez(request: HttpRequest) -> JsonResponse:
    """200 as long as the process answers; its dependencies are not checked."""
    return JsonResponse({"status": "ok"})


@never_cache
@require_safe
def readyz(request: HttpRequest, readiness: Readiness = READINESS) -> JsonResponse:
    """The status of every dependency by name; 503 if any of them is unavailable."""
    parts = readiness.parts()
    ready = all(answer == "ok" for answer in parts.values())
    return JsonResponse({"status": "ok" if ready else "unavailable", "parts": parts}, status=200 if ready else 503)
