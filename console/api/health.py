"""Liveness and readiness, for load balancers and supervisors. They need no login."""

from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from console.health.readiness import READINESS, Readiness


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
    ready = all(part.is_ok for part in parts.values())
    texts = {name: part.text for name, part in parts.items()}
    return JsonResponse({"status": "ok" if ready else "unavailable", "parts": texts}, status=200 if ready else 503)
