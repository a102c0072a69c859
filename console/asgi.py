"""The ASGI application that uvicorn serves.

Django reads the whole body of a request, large ones to disk, before it authenticates the client. This module therefore
limits the body's size.
"""

import gc
import os
from importlib import import_module
from typing import Any, Final

from django.conf import settings
from django.core.asgi import get_asgi_application

DRAINED_LIMITS: Final = 16
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")


def limit_body(application: Any) -> Any:
    """`application` with a body limit: 413 if Content-Length or the received body exceeds it.

    A body without Content-Length disconnects the application. The rest of a body up to `DRAINED_LIMITS` times the limit
    is read, since a client that still sends sees no answer.
    """

    async def limited(scope: Any, receive: Any, send: Any) -> None:
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        if _content_length(scope) > limit:
            await _refuse_body(send, limit)
            return
        received, has_answered = 0, False

        async def receive_limited() -> Any:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message if received <= limit else {"type": "http.disconnect"}

        async def send_noted(message: Any) -> None:
            nonlocal has_answered
            has_answered = True
            await send(message)

        await application(scope, receive_limited, send_noted)
        if received > limit and not has_answered:
            more = True
            while more and received <= DRAINED_LIMITS * limit:
                message = await receive()
                received += len(message.get("body", b""))
                more = message.get("more_body", False)
            await _refuse_body(send, limit)

    return limited


async def _refuse_body(send: Any, limit: int) -> None:
    await send({"type": "http.response.start", "status": 413, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": f"The request body exceeds {limit} bytes.\n".encode()})


def _content_length(scope: Any) -> int:
    given = dict(scope.get("headers", ())).get(b"content-length", b"0")
    return int(given) if given.isdigit() else 0


application = limit_body(get_asgi_application())

# A full collection of garbage stops all threads. It took 100 ms every 15 requests, mostly for modules and tables that
# never become garbage.
import_module(settings.ROOT_URLCONF)  # with all views
gc.collect()
gc.freeze()
# With few objects left, Python's threshold of 700 makes full collections frequent, while the rows of a request are
# alive. Collections then take 1.8 ms of a request of 30 ms, and 0.7 ms with this threshold.
gc.set_threshold(20_000)
