"""The page of the cluster."""

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from console.ui.cluster import read_cluster
from console.ui.views.page import page, require_login


@require_safe
@require_login
def cluster(request: HttpRequest) -> HttpResponse:
    return page(request, "cluster.html", {"section": "cluster", "cluster": read_cluster()})
