"""The page of the cluster."""

from django.utils import timezone

from console.health.readiness import READINESS
from console.pages import workers
from console.pages.cluster import read_cluster
from console.ui.cluster import places_with_health, queues_with_uses, rows_of_cluster
from console.ui.live.page import LivePage, PageContent
from console.ui.live.revision import revision


class ClusterPage(LivePage):
    template, blocks = "cluster.html", "_cluster.html"

    def content(self) -> PageContent:
        cluster = read_cluster()
        places = places_with_health(cluster, timezone.now())
        queues, parts = queues_with_uses(cluster), READINESS.parts()
        return {"section": "cluster", "cluster": cluster, "places": places, "queues": queues, "parts": parts}

    def rows(self) -> str:
        return revision(self.request, rows_of_cluster(), workers.CENSUS.last(), READINESS.parts())


cluster = ClusterPage.view()
