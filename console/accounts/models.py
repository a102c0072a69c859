"""The user, the API tokens, the answers to idempotent requests, and saved views.

Django cannot replace the user model later, so it is custom from the first migration.
"""

from datetime import timedelta
from enum import StrEnum
from typing import Any, ClassVar

from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.db import models, transaction
from django.db.models import Value
from django.db.models.functions import Now
from django.utils import timezone


class Scope(StrEnum):
    """A part of the permissions of a user that a token may have. Every token may read.

    `operate` includes reviews: a review is an operation.
    """

    DEFINE = "define"
    OPERATE = "operate"
    REVIEW = "review"
    MAINTAIN = "maintain"


def all_scopes() -> list[str]:
    return [scope.value for scope in Scope]


class User(AbstractUser):
    """A person or a program that signs in."""

    SIGN_ON_DAYS: ClassVar = 30  #: after a single sign-on, for which tokens of its user are accepted

    identity = models.CharField(
        max_length=500,
        null=True,
        blank=True,
        unique=True,
        help_text="Issuer and subject of single sign-on, separated by a space. Empty: the user has a password only.",
    )
    token_scopes: frozenset[str] | None = None  #: of the token that authenticated the request; None: a session
    _lost_password = False

    class Meta:
        db_table = "weir_user"

    @property
    def must_sign_on(self) -> bool:
        """Whether the last single sign-on is so old that the groups of the user may be, too."""
        oldest = timezone.now() - timedelta(days=self.SIGN_ON_DAYS)
        is_bound = bool(self.identity) and not self.is_superuser
        return is_bound and (self.last_login is None or self.last_login < oldest)

    def set_unusable_password(self) -> None:
        super().set_unusable_password()
        self._lost_password = True

    def save(self, *args: Any, **options: Any) -> None:
        """Saves the user. A new password ends all tokens, as it ends all sessions.

        `_password` is that of `set_password`. Django removes it when it only renews the hash of the same password.
        """
        is_changed = getattr(self, "_password", None) is not None or self._lost_password
        with transaction.atomic():
            super().save(*args, **options)
            if is_changed:
                ApiToken.objects.filter(user=self).delete()
        self._lost_password = False


class ApiToken(models.Model):
    """An API token, stored as its SHA-256. `hint` is its first characters, which identify the token to people."""

    id = models.BigAutoField(primary_key=True)
    user = models.ForeignKey(User, models.CASCADE, related_name="+")
    digest = models.TextField(unique=True)
    hint = models.TextField()
    created_at = models.DateTimeField(db_default=Now())
    used_at = models.DateTimeField(null=True)
    expires_at = models.DateTimeField(null=True, blank=True, help_text="Empty: never.")
    scopes = ArrayField(
        models.TextField(choices=[(scope.value, scope.value) for scope in Scope]),
        default=list,
        db_default=Value([], ArrayField(models.TextField())),
        blank=True,
        help_text="A token may read, and do what both its scopes and the permissions of its user allow.",
    )
    request_key = models.TextField(null=True, editable=False)  #: of the form that issued it

    class Meta:
        db_table = "weir_api_token"
        ordering = ("-created_at",)
        verbose_name = "API token"

    def __str__(self) -> str:
        return f"{self.hint}…"


class IdempotentRequest(models.Model):
    """A request of a user with an idempotency key, and its answer. Housekeeping removes it after a day.

    `digest`: of address and body. The transaction of the request writes the row, so each row has an answer.
    """

    id = models.BigAutoField(primary_key=True)
    user = models.ForeignKey(User, models.CASCADE, related_name="+", db_index=False)
    key = models.TextField()
    digest = models.TextField()
    scopes = models.JSONField(null=True)  #: of the token of the request; null: a session
    status = models.IntegerField(default=0)
    headers = models.JSONField(default=dict)
    answer = models.TextField(default="")
    created_at = models.DateTimeField(db_default=Now(), db_index=True)

    class Meta:
        db_table = "weir_idempotent_request"
        constraints = (models.UniqueConstraint(fields=("user", "key"), name="weir_idempotent_request_key"),)

    def __str__(self) -> str:
        return self.key


class SavedView(models.Model):
    """A user's name for filters of the list of jobs. `query`: the query string of its address."""

    MAX_NAME: ClassVar = 60
    MAX_QUERY: ClassVar = 1_000

    id = models.BigAutoField(primary_key=True)
    user = models.ForeignKey(User, models.CASCADE, related_name="+", db_index=False)
    name = models.TextField()
    query = models.TextField(default="", db_default="", blank=True)

    class Meta:
        db_table = "weir_saved_view"
        ordering = ("name",)
        constraints = (models.UniqueConstraint(fields=("user", "name"), name="weir_saved_view_name"),)

    def __str__(self) -> str:
        return self.name
