"""Names, notes, pins and copies, from the page of a checkpoint."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.views.decorators.http import require_POST

from console.accounts.refusals import Refused
from console.checkpoints.models import Checkpoint
from console.operations.models import OperationKind
from console.ui.views.actions import request_operation
from console.ui.views.page import require_login


@require_POST
@require_login
def pin(request: HttpRequest, pk: int) -> HttpResponse:
    """Pins the checkpoint, or unpins it if the form asks for that."""
    unpins = request.POST.get("kind") == OperationKind.UNPIN
    return _change(request, pk, OperationKind.UNPIN if unpins else OperationKind.PIN)


@require_POST
@require_login
def label(request: HttpRequest, pk: int) -> HttpResponse:
    """Sets name and note of the checkpoint; an empty field removes the text."""
    texts = {name: request.POST.get(name, "").strip() for name in ("name", "note")}
    return _change(request, pk, OperationKind.LABEL, **texts)


@require_POST
@require_login
def copy(request: HttpRequest, pk: int) -> HttpResponse:
    """Requests a copy of the savepoint in another folder."""
    return _change(request, pk, OperationKind.COPY, target=request.POST.get("target", "").strip())


def _change(request: HttpRequest, pk: int, kind: OperationKind, **params: Any) -> HttpResponse:
    found = get_object_or_404(Checkpoint.objects.select_related("job"), pk=pk)
    try:
        request_operation(request, found.job, kind, {"checkpoint": found.pk, **params})
    except Refused as refused:
        messages.error(request, refused.detail)
    return redirect("ui:checkpoint", found.pk)
