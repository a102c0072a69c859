"""Login, single sign-on, logout, refused requests, and the choices of a browser: the theme and the zone of times.

Both choices are cookies, so that the first paint is right.
"""

from datetime import timedelta
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth import login
from django.contrib.auth.views import LoginView
from django.core.exceptions import TooManyFieldsSent
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.http import require_GET, require_POST

from console.accounts.refusals import Refused
from console.accounts.sign_on import SignOnFailed, admit, claims_of, is_offered, redirect_to_provider
from console.accounts.throttling import ProviderThrottle, seconds_to_wait
from console.ui.zones import COOKIE, known_zones

_YEAR_S = 365 * 86_400
_THEMES = ("light", "dark")
#: A session of single sign-on ends after this time, so that the provider is asked again.
SESSION_TIME = timedelta(hours=12)
_SIGN_ON_TIME = timedelta(minutes=15)  #: at the provider
_NEXT = "weir_next"  #: the address, in the session, to which a sign-on leads


class Login(LoginView):
    template_name = "login.html"
    redirect_authenticated_user = True

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        wait_s = seconds_to_wait(request)
        if not wait_s:
            return super().post(request, *args, **kwargs)
        context = self.get_context_data(form=self.get_form_class()(request), wait_s=wait_s)
        return self.render_to_response(context, status=HTTPStatus.TOO_MANY_REQUESTS, headers={"Retry-After": wait_s})

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        return super().get_context_data(**context, provider=urlsplit(settings.WEIR_OIDC_ISSUER).hostname)


@require_GET
def sign_on(request: HttpRequest) -> HttpResponse:
    """Sends the browser to the provider of single sign-on. Any page can cause attempts: they have an own limit."""
    if not is_offered():
        raise Http404
    if wait_s := seconds_to_wait(request, ProviderThrottle):
        response = _sign_in_page(request, HTTPStatus.TOO_MANY_REQUESTS, wait_s=wait_s)
        response.headers["Retry-After"] = str(wait_s)
        return response
    if not request.user.is_authenticated:
        request.session.set_expiry(_SIGN_ON_TIME)
    request.session[_NEXT] = _safe_address(request, request.GET.get("next", ""))
    try:
        return redirect_to_provider(request, request.build_absolute_uri(reverse("ui:provider-return")))
    except SignOnFailed as failed:
        return _sign_in_page(request, HTTPStatus.BAD_GATEWAY, refusal=failed.detail)


@require_GET
def provider_return(request: HttpRequest) -> HttpResponse:
    """Begins a session of the user whom the provider names."""
    if not is_offered():
        raise Http404
    address = request.session.pop(_NEXT, "/")
    try:
        user = admit(claims_of(request))
    except Refused as refused:
        return _sign_in_page(request, HTTPStatus.FORBIDDEN, refusal=refused.detail)
    login(request, user, settings.AUTHENTICATION_BACKENDS[0])
    request.session.set_expiry(SESSION_TIME)
    return HttpResponseRedirect(address)


def _sign_in_page(request: HttpRequest, status: HTTPStatus, **context: Any) -> HttpResponse:
    page = Login(request=request, args=(), kwargs={})
    return page.render_to_response(page.get_context_data(form=page.get_form_class()(request), **context), status=status)


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
    return _safe_address(request, request.POST.get("next", ""))


def _safe_address(request: HttpRequest, address: str) -> str:
    safe = url_has_allowed_host_and_scheme(address, {request.get_host()}, require_https=request.is_secure())
    return address if safe else "/"
