"""Is the process alive, and can it do its work. For load balancers and supervisors; needs no login."""

from collections.abc import Callable

from django.db import DatabaseError, InterfaceError, connection
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from kombu.exceptions import OperationalError as BrokerError

from console.celery import app

_BROKER_TIMEOUT_S = 2


@never_cache
@require_safe
def livez(request: HttpRequest) -> JsonResponse:
    """The process answers. Says nothing of what it depends on."""
    return JsonResponse({"status": "ok"})


@never_cache
@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """Every part that requests need, by name; 503 when one is away."""
    parts = {"database": _probe(_ask_database), "broker": _probe(_ask_broker)}
    ready = all(answer == "ok" for answer in parts.values())
    return JsonResponse({"status": "ok" if ready else "unavailable", "parts": parts}, status=200 if ready else 503)


def _probe(ask: Callable[[], None]) -> str:
    try:
        ask()
    except (DatabaseError, InterfaceError, BrokerError, OSError) as error:
        return f"unavailable: {type(error).__name__}"
    return "ok"


def _ask_database() -> None:
    """A query of a table of ours: it fails before the migrations too."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM weir_run LIMIT 1")


def _ask_broker() -> None:
    with app.connection_for_read() as broker:
        broker.ensure_connection(max_retries=1, interval_start=0, timeout=_BROKER_TIMEOUT_S)
