"""The page of the cluster."""

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_safe

from console.health.readiness import READINESS
from console.pages import workers
from console.pages.cluster import read_cluster
from console.ui.cluster import places_with_health, queues_with_uses, rows_of_cluster
from console.ui.revision import revision
from console.ui.views.page import PageContent, page_or_blocks, require_login


@require_safe
@require_login
def cluster(request: HttpRequest) -> HttpResponse:
    def load_content() -> PageContent:
        found = read_cluster()
        places = places_with_health(found, timezone.now())
        queues, parts = queues_with_uses(found), READINESS.parts()
        context = {"section": "cluster", "cluster": found, "places": places, "queues": queues, "parts": parts}
        return PageContent(context, settled=False)

    def load_revision() -> str:
        return revision(request, rows_of_cluster(), workers.CENSUS.last(), READINESS.parts())

    return page_or_blocks(request, "cluster.html", "_cluster.html", load_content, load_revision)
