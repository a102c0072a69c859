"""Login, logout, refused requests, and the choices of a browser: the theme and the zone of times.

Both choices are cookies, so that the first paint is right.
"""

from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.contrib.auth.views import LoginView
from django.core.exceptions import TooManyFieldsSent
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_POST

from console.accounts.throttling import seconds_to_wait
from console.ui.zones import COOKIE, known_zones

_YEAR_S = 365 * 86_400
_THEMES = ("light", "dark")


class Login(LoginView):
    template_name = "login.html"
    redirect_authenticated_user = True

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        wait_s = seconds_to_wait(request)
        if not wait_s:
            return super().post(request, *args, **kwargs)
        context = self.get_context_data(form=self.get_form_class()(request), wait_s=wait_s)
        return self.render_to_response(context, status=HTTPStatus.TOO_MANY_REQUESTS, headers={"Retry-After": wait_s})


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """The page of a request that Django refuses. A form with too many inputs is explained."""
    limit = settings.DATA_UPLOAD_MAX_NUMBER_FIELDS if isinstance(exception, TooManyFieldsSent) else None
    return render(request, "400.html", {"limit": limit}, status=HTTPStatus.BAD_REQUEST)


@require_POST
def theme(request: HttpRequest) -> HttpResponse:
    """Sets the theme cookie. With scripts `weir.js` writes the same cookie."""
    response = redirect(_back(request))
    choice = request.POST.get("theme")
    if choice in _THEMES:
        response.set_cookie("weir_theme", choice, max_age=_YEAR_S, samesite="Lax")
    else:
        response.delete_cookie("weir_theme", samesite="Lax")
    return response


@require_POST
def zone(request: HttpRequest) -> HttpResponse:
    """Sets the zone of absolute times; a name that is no zone brings relative times back."""
    response = redirect(_back(request))
    choice = request.POST.get("zone", "")
    if choice in known_zones():
        response.set_cookie(COOKIE, choice, max_age=_YEAR_S, samesite="Lax")
    else:
        response.delete_cookie(COOKIE, samesite="Lax")
    return response


def _back(request: HttpRequest) -> str:
    address = request.POST.get("next", "")
    safe = url_has_allowed_host_and_scheme(address, {request.get_host()}, require_https=request.is_secure())
    return address if safe else "/"
