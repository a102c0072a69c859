"""Confirmation pages and requests to start, stop, drain or cancel a run and to take savepoints.

Every request goes to `console.operations.services.request`, as in the API.
"""

from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST

from console.accounts.middleware import request_id_of
from console.accounts.refusals import Refused
from console.checkpoints.models import Checkpoint
from console.checkpoints.selectors import continuable, run_progress
from console.checkpoints.storage import target_roots
from console.jobs.models import Job, Run
from console.metrics.live import live_metrics
from console.operations.kinds.job.start import Start
from console.operations.legality import allowed_operation, request_refusal
from console.operations.models import OperationKind
from console.operations.preview import Confirmation
from console.operations.registry import operation_type
from console.operations.restores.effects import repeated_output
from console.operations.selectors import active_operations
from console.operations.services import OperationRequestContext
from console.operations.services import request as ask
from console.pages.selectors import rows_of_confirmation
from console.pages.workers import wait_of_new_run
from console.runs.selectors import latest_run
from console.ui.actions import confirmation
from console.ui.live.page import PageContent, page_or_blocks, require_login, user_of
from console.ui.live.revision import revision
from console.ui.paging import whole_number

REPEATED_MESSAGE = "This page had already sent the request."


def request_context(request: HttpRequest) -> OperationRequestContext:
    """The user, reason and key of a form."""
    return OperationRequestContext(
        user=user_of(request),
        reason=request.POST.get("reason", "").strip(),
        request_id=request_id_of(request),
        idempotency_key=request.POST.get("key") or None,
    )


def request_operation(request: HttpRequest, job: Job, kind: str, params: dict[str, Any] | None = None) -> None:
    """Requests an operation and adds a message for the user.

    Raises:
        Refused: with the sentence to show.
    """
    accepted = ask(request_context(request), job, kind, params or {})
    messages.info(request, REPEATED_MESSAGE if accepted.replayed else operation_type(kind).message)


def request_or_explain(request: HttpRequest, job: Job, kind: str, params: dict[str, Any]) -> None:
    """As `request_operation`. A refusal becomes a message for the user."""
    try:
        request_operation(request, job, kind, params)
    except Refused as refused:
        messages.error(request, refused.detail)


@require_POST
@require_login
def on_snapshot(request: HttpRequest, pk: int, kinds: Sequence[str]) -> HttpResponse:
    """Requests an operation on a checkpoint: the kind of `kinds` that the form names, or else the first.

    The form has a field for each parameter; an empty field removes a text.
    """
    checkpoint = get_object_or_404(Checkpoint.objects.select_related("job"), pk=pk)
    kind = request.POST.get("kind", "")
    operation = operation_type(kind if kind in kinds else kinds[0])
    assert operation.params is not None, "it can be requested"
    texts = {name: request.POST.get(name, "").strip() for name in operation.params.__struct_fields__}
    request_or_explain(request, checkpoint.job, operation.kind, {**texts, "checkpoint": checkpoint.pk})
    return redirect("ui:checkpoint", pk)


@require_http_methods(["GET", "HEAD", "POST"])
@require_login
def start(request: HttpRequest, pk: int) -> HttpResponse:
    """The first start needs no confirmation. Later, GET shows the output that a start repeats; POST must accept it."""
    job = get_object_or_404(Job, pk=pk)
    if request.method == "POST":
        accepts = request.POST.get("accept_repeated_output") == "on"
        return _request_and_redirect(
            request, job, OperationKind.START, {"accept_repeated_output": True} if accepts else None
        )
    newest, repeated = continuable(job).first(), repeated_output(job.pk)
    wait = wait_of_new_run()
    return _confirmation_page(
        request, job, OperationKind.START, lambda run: Start().confirmation(newest, repeated, wait), wait
    )


@require_http_methods(["GET", "HEAD", "POST"])
@require_login
def confirm(request: HttpRequest, pk: int, kind: str) -> HttpResponse:
    """Savepoints, and operations that end a run: GET asks for confirmation, POST requests the operation.

    The button of a job posts a savepoint at once; its page with name, note and pin is optional.
    """
    job = get_object_or_404(Job, pk=pk)
    if request.method == "POST":
        return _request_and_redirect(request, job, kind, _run_params(request))
    return _confirmation_page(
        request, job, kind, lambda run: confirmation(kind, run, run_progress(run), live_metrics(run), timezone.now())
    )


def _run_params(request: HttpRequest) -> dict[str, Any]:
    """The run that the page showed, and the name, note, target folder and pin in the form that are not empty."""
    texts = {name: request.POST.get(name, "").strip() for name in ("name", "note", "target")}
    facts = {"run": whole_number(request.POST.get("run")), "pin": request.POST.get("pin") == "on"}
    return {name: value for name, value in {**texts, **facts}.items() if value}


def _confirmation_page(
    request: HttpRequest, job: Job, kind: str, ask_about: Callable[[Run | None], Confirmation], *facts: str
) -> HttpResponse:
    """The page stays live: numbers, state, and the operations of others that make this one impossible.

    A poll names the run that the page was opened for. Once another run is the latest, the request is disabled: its
    user confirms it anew. `facts` are shown, but no row has them.
    """

    def load_content() -> PageContent:
        run = latest_run(job)
        active = tuple(active_operations(job))
        act, confirmation = allowed_operation(OperationKind(kind), job, run, request.user, active), ask_about(run)
        is_poll = "HX-Request" in request.headers
        return {
            "job": job, "run": run, "act": act, "asked": confirmation, "active": active, "command": kind,
            "is_outdated": is_poll and whole_number(request.GET.get("run")) != confirmation.run,
            "target_roots": target_roots(), "copy_refusal": request_refusal(OperationKind.COPY, request.user),
        }  # fmt: skip

    def load_revision() -> str:
        return revision(request, rows_of_confirmation(job), *facts)

    return page_or_blocks(request, "jobs/confirm.html", "jobs/_confirmation.html", load_content, load_revision)


def _request_and_redirect(
    request: HttpRequest, job: Job, kind: str, params: dict[str, Any] | None = None
) -> HttpResponse:
    try:
        request_operation(request, job, kind, params)
    except Refused as refused:
        if refused.code == "repeats-output":  # output was committed after the page was rendered
            return redirect("ui:start", job.pk)
        messages.error(request, refused.detail)
    return redirect("ui:job", job.pk)
