"""URL prefixes of the console."""

from django.contrib import admin
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView

from console.api import health
from console.api.prometheus import PrometheusMetrics

handler400 = "console.ui.views.session.bad_request"

urlpatterns = [
    path("favicon.ico", RedirectView.as_view(url=static("weir/icon.svg")), name="favicon"),  # browsers request it
    path("livez", health.livez, name="livez"),
    path("readyz", health.readyz, name="readyz"),
    path("metrics", PrometheusMetrics.as_view(), name="prometheus"),
    path("admin/", admin.site.urls),
    path("api/v1/", include("console.api.urls")),
    path("", include("console.ui.urls")),
]
