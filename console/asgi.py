"""The ASGI application that uvicorn serves.

Django collects the body of a request, on disk when it is large, before anything asks who sent it. So the size of a body
is bounded here.
"""

import os
from typing import Any

from django.conf import settings
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")

_django = get_asgi_application()


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers 413 to a body that is announced as too large, and hangs up on one that grows too large."""
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    if _announced_bytes(scope) > limit:
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": f"A request may have {limit} bytes.\n".encode()})
        return
    received = 0

    async def bounded() -> Any:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        return message if received <= limit else {"type": "http.disconnect"}

    await _django(scope, bounded, send)


def _announced_bytes(scope: Any) -> int:
    given = dict(scope.get("headers", ())).get(b"content-length", b"0")
    return int(given) if given.isdigit() else 0
