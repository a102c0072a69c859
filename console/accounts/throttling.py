"""How often somebody may try to sign in. One count for pages and API, or a guesser would have two."""

from typing import Any

from django.http import HttpRequest
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle


class LoginThrottle(SimpleRateThrottle):
    """Counts by address; which one is the client's is told by WEIR_NUM_PROXIES."""

    scope = "login"

    def get_cache_key(self, request: Request | HttpRequest, view: Any) -> str:
        return self.cache_format % {"scope": self.scope, "ident": self.get_ident(request)}  # type: ignore[arg-type]
