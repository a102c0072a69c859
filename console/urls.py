"""Where each part of the console hangs."""

from django.contrib import admin
from django.urls import include, path

from console.api import health

urlpatterns = [
    path("livez", health.livez, name="livez"),
    path("readyz", health.readyz, name="readyz"),
    path("admin/", admin.site.urls),
    path("api/v1/", include("console.api.urls")),
    path("", include("console.ui.urls")),
]
