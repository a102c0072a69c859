"""Is the process alive, and can it do its work. For load balancers and supervisors; needs no login."""

from django.http import HttpRequest, JsonResponse


def livez(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"status": "ok"})
