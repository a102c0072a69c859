"""The API tokens of the user: their list and their revocation. A login issues them."""

from http import HTTPStatus

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import generics
from rest_framework.exceptions import NotFound
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.models import ApiToken
from console.accounts.tokens import revoke, tokens_of
from console.api.base import StrictView
from console.api.serializers.base import Problem
from console.api.serializers.tokens import TokenSerializer


class OwnTokens(StrictView):
    """The tokens of the user of the request."""

    queryset = ApiToken.objects.all()
    serializer_class = TokenSerializer

    def get_queryset(self) -> QuerySet[ApiToken]:
        return super().get_queryset().none() if getattr(self, "swagger_fake_view", False) else tokens_of(self.user)


class Tokens(OwnTokens, generics.ListAPIView[ApiToken]):
    """The tokens of the user, newest first."""

    query = frozenset({"limit", "cursor"})


class TokenDetail(OwnTokens):
    """The revocation of a token of the user."""

    @extend_schema(responses={204: None, 403: Problem, 404: Problem})
    def delete(self, request: Request, pk: int) -> Response:
        """A session may revoke each token of its user, as may a token with all scopes. A token may revoke itself."""
        revoke(self.user, self.get_object(), by=request.auth if isinstance(request.auth, ApiToken) else None)
        return Response(status=HTTPStatus.NO_CONTENT)


class CurrentToken(StrictView, generics.GenericAPIView[ApiToken]):
    """The token of the request."""

    queryset = ApiToken.objects.all()
    serializer_class = TokenSerializer

    @extend_schema(responses={200: TokenSerializer, 404: Problem})
    def get(self, request: Request) -> Response:
        return Response(self.get_serializer(self._token(request)).data)

    @extend_schema(responses={204: None, 404: Problem})
    def delete(self, request: Request) -> Response:
        """Revokes the token, whatever its scopes."""
        self._token(request).delete()
        return Response(status=HTTPStatus.NO_CONTENT)

    def _token(self, request: Request) -> ApiToken:
        if not isinstance(request.auth, ApiToken):
            raise NotFound("The request has no token: it belongs to a session.")
        return request.auth
