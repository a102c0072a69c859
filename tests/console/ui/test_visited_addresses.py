"""Each address that answers with a page is opened in Chromium: by day and night, at all widths, with and without
scripts.
"""

from django.test import Client
from django.urls import URLPattern, resolve, reverse

from console.accounts.models import ApiToken, User
from console.incidents.models import Incident
from console.jobs.models import Package, Run
from console.operations.models import Operation
from console.ui.urls import urlpatterns
from tests.console.ui import every_page, logs, numbers

#: Answers of an address that shows no page: a redirect, and one that takes POST alone.
WITHOUT_PAGE = (302, 405)
#: Addresses of a provider, which this console does not have (`test_single_sign_on`).
OF_PROVIDER = {"sign-on", "provider-return"}


def example(pattern: URLPattern, run: Run) -> str:
    """The address of an existing row."""
    begin = str(pattern.pattern).partition("/")[0]
    checkpoint = run.checkpoints.get(number=213)
    rows = {
        "jobs": run.job_id,
        "versions": run.version_id,
        "runs": run.pk,
        "checkpoints": checkpoint.pk,
        "state-queries": checkpoint.state_queries.get(state="succeeded").pk,
        "incidents": Incident.objects.latest("pk").pk,
        "operations": Operation.objects.latest("created_at").pk,
        "packages": Package.objects.latest("created_at").pk,
        "tokens": ApiToken.objects.latest("pk").pk,
    }
    values = {"pk": rows.get(begin), "key": "records"}
    return reverse(f"ui:{pattern.name}", kwargs={name: values[name] for name in pattern.pattern.converters})


def test_the_browser_opens_every_page(running: Run) -> None:
    numbers.record(running, hours=0.1, fine_minutes=2)
    logs.write(running)
    client = Client()
    client.force_login(User.objects.get(username="operator"))
    paths = ["/login/", *every_page.pages_of_running_job(running).values()]
    opened = OF_PROVIDER | {resolve(path.partition("?")[0]).url_name for path in paths}
    unopened = []
    for path in (example(pattern, running) for pattern in urlpatterns if pattern.name not in opened):
        answer = client.get(path)
        is_file = answer.status_code == 200 and not answer.headers["Content-Type"].startswith("text/html")
        if not is_file and answer.status_code not in WITHOUT_PAGE:
            unopened.append(f"{path}: status {answer.status_code}")
    assert unopened == []
