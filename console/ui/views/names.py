"""Names of jobs, for the palette of the keyboard."""

from django.http import HttpRequest, JsonResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from console.jobs.models import Job
from console.ui.live.page import require_login
from console.ui.paging import text

_MAX_NAMES = 20


@require_safe
@require_login
def job_names(request: HttpRequest) -> JsonResponse:
    """Jobs whose names contain `q`, by name; archived jobs are left out."""
    jobs = Job.objects.filter(archived_at=None, name__icontains=text(request.GET.get("q"))).order_by("name")
    rows = jobs.values_list("pk", "name")[:_MAX_NAMES]
    return JsonResponse({"jobs": [{"name": name, "url": reverse("ui:job", args=[pk])} for pk, name in rows]})
