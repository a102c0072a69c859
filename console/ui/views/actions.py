"""Confirmation pages and requests to start, stop, drain or cancel a run and to take savepoints.

Every request goes to `console.operations.services.request`, as in the API.
"""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_http_methods, require_POST

from console.accounts.middleware import request_id_of
from console.accounts.refusals import Refused
from console.jobs.models import Job
from console.operations import selectors
from console.operations.models import OperationKind
from console.operations.restore import committed_of
from console.operations.services import Asked
from console.operations.services import request as ask
from console.ui.actions import Confirmation, confirmation, start_confirmation
from console.ui.jobpage import numbers_of
from console.ui.views.page import page, signed_in, user_of

SAID = {
    OperationKind.START: "The start was requested.",
    OperationKind.RESTORE: "The restore was requested.",
    OperationKind.SAVEPOINT: "A savepoint was requested.",
    OperationKind.STOP: "The stop with savepoint was requested.",
    OperationKind.DRAIN: "The drain was requested.",
    OperationKind.CANCEL: "The cancellation was requested.",
    OperationKind.DISCARD: "The savepoint is discarded; its files are being deleted.",
}
AGAIN = "This page had already sent the request."


def requested(request: HttpRequest, job: Job, kind: str, params: dict[str, Any] | None = None) -> None:
    """Request an operation and add a message for the user.

    Raises:
        Refused: with the sentence to show.
    """
    asked = Asked(
        user=user_of(request),
        reason=request.POST.get("reason", "").strip(),
        request_id=request_id_of(request),
        idempotency_key=request.POST.get("key") or None,
    )
    accepted = ask(asked, job, kind, params or {})
    messages.info(request, AGAIN if accepted.replayed else SAID[OperationKind(kind)])


@require_POST
@signed_in
def at_once(request: HttpRequest, pk: int, kind: str) -> HttpResponse:
    """Operations without confirmation: savepoint."""
    return _act(request, get_object_or_404(Job, pk=pk), kind)


@require_http_methods(["GET", "HEAD", "POST"])
@signed_in
def start(request: HttpRequest, pk: int) -> HttpResponse:
    """Without confirmation for the first start. Later GET shows the repeated output, and POST must accept it."""
    job = get_object_or_404(Job, pk=pk)
    if request.method == "POST":
        accepts = request.POST.get("accept_repeated_output") == "on"
        return _act(request, job, OperationKind.START, {"accept_repeated_output": True} if accepts else None)
    newest, repeated = selectors.continuable(job).first(), committed_of(job.pk)
    return _ask(request, job, OperationKind.START, start_confirmation(newest, repeated))


@require_http_methods(["GET", "HEAD", "POST"])
@signed_in
def confirmed(request: HttpRequest, pk: int, kind: str) -> HttpResponse:
    """Operations that end a run: GET asks for confirmation, POST performs them."""
    job = get_object_or_404(Job, pk=pk)
    if request.method == "POST":
        return _act(request, job, kind)
    run = selectors.latest_run(job)
    return _ask(request, job, kind, confirmation(kind, run, selectors.reached(run), numbers_of(run)))


def _ask(request: HttpRequest, job: Job, kind: str, asked: Confirmation) -> HttpResponse:
    run = selectors.latest_run(job)
    act = next(act for act in selectors.acts(job, run, request.user) if act.act == kind)
    return page(request, "jobs/confirm.html", {"section": "jobs", "job": job, "run": run, "act": act, "asked": asked})


def _act(request: HttpRequest, job: Job, kind: str, params: dict[str, Any] | None = None) -> HttpResponse:
    try:
        requested(request, job, kind, params)
    except Refused as refused:
        if refused.code == "repeats-output":  # committed since the page was rendered
            return redirect("ui:start", job.pk)
        messages.error(request, refused.detail)
    return redirect("ui:job", job.pk)
