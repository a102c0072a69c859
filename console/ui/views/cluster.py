"""The page of the cluster."""

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from console.operations.workers import CENSUS
from console.ui.cluster import read_cluster, rows_of_cluster
from console.ui.revision import revision
from console.ui.views.page import PageContent, page_or_blocks, require_login


@require_safe
@require_login
def cluster(request: HttpRequest) -> HttpResponse:
    def load_content() -> PageContent:
        return PageContent({"section": "cluster", "cluster": read_cluster()}, settled=False)

    def load_revision() -> str:
        return revision(request, rows_of_cluster(), CENSUS.last())

    return page_or_blocks(request, "cluster.html", "_cluster.html", load_content, load_revision)
