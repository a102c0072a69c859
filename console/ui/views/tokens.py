"""The API tokens of the signed-in user: their list, a new one, and their revocation."""

from datetime import timedelta
from http import HTTPStatus

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from console.accounts.tokens import IssuedToken, issue, revoke, tokens_of
from console.ui.forms.forms import TokenForm
from console.ui.live.page import page, require_login, user_of


@require_http_methods(["GET", "HEAD", "POST"])
@require_login
@never_cache
def tokens(request: HttpRequest) -> HttpResponse:
    """POST issues a token. Only its answer shows the token, so that it is not followed by a redirect."""
    form, status = TokenForm(request.POST if request.method == "POST" else None), HTTPStatus.OK
    issued: IssuedToken | None = None
    if request.method == "POST":
        if form.is_valid():
            expires_at = timezone.now() + timedelta(days=form.cleaned_data["days"])
            scopes, key = form.cleaned_data["scopes"], request.POST.get("key") or None
            issued = issue(user_of(request), expires_at, scopes=scopes, request_key=key)
            form = TokenForm()
        else:
            status = HTTPStatus.UNPROCESSABLE_ENTITY
    context = {"section": "tokens", "form": form, "issued": issued, "tokens": tuple(tokens_of(user_of(request)))}
    return page(request, "tokens.html", context, status=status)


@require_POST
@require_login
def revoke_token(request: HttpRequest, pk: int) -> HttpResponse:
    user = user_of(request)
    token = get_object_or_404(tokens_of(user), pk=pk)
    revoke(user, token)
    messages.success(request, f"The token {token} is revoked.")
    return redirect("ui:tokens")
