"""Permissions of signed-in users, and scopes of their tokens. Every user and every token may read.

To define jobs, to upload and to delete their code, to operate them, and to switch maintenance mode each need a
permission. A request with a token needs a scope besides.

The permissions are Django's own, so the admin grants them to users and groups without any code here.
"""

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser

from console.accounts.models import Scope
from console.accounts.refusals import Forbidden

AnyUser = AbstractBaseUser | AnonymousUser

_DEFINE = "jobs.add_job"
_UPLOAD = "jobs.add_package"
_DELETE_PACKAGE = "jobs.delete_package"
_OPERATE = "operations.add_operation"
_MAINTAIN = "operations.add_maintenance"


def define_refusal(user: AnyUser) -> str | None:
    """Why `user` may not create jobs and versions; None when they may."""
    return _missing_right(user, _DEFINE, "define jobs", Scope.DEFINE)


def operate_refusal(user: AnyUser, *, is_review: bool = False) -> str | None:
    """Why `user` may not start, stop or restore runs, or review a checkpoint; None when they may."""
    scopes = (Scope.OPERATE, Scope.REVIEW) if is_review else (Scope.OPERATE,)
    return _missing_right(user, _OPERATE, "review checkpoints" if is_review else "operate jobs", *scopes)


def require_define(user: AnyUser) -> None:
    if reason := define_refusal(user):
        raise Forbidden(reason)


def require_upload(user: AnyUser) -> None:
    """Code of a package runs as the account of Weir, so the permission to define jobs is not enough."""
    require_define(user)
    if reason := _missing_right(user, _UPLOAD, "upload packages", Scope.DEFINE):
        raise Forbidden(reason)


def delete_package_refusal(user: AnyUser) -> str | None:
    """Why `user` may not delete packages; None when they may."""
    return _missing_right(user, _DELETE_PACKAGE, "delete packages", Scope.DEFINE)


def require_delete_package(user: AnyUser) -> None:
    if reason := delete_package_refusal(user):
        raise Forbidden(reason)


def require_operate(user: AnyUser, *, is_review: bool = False) -> None:
    if reason := operate_refusal(user, is_review=is_review):
        raise Forbidden(reason)


def require_maintain(user: AnyUser) -> None:
    if reason := _missing_right(user, _MAINTAIN, "begin or end maintenance", Scope.MAINTAIN):
        raise Forbidden(reason)


def require_own_writes(user: AnyUser, act: str) -> None:
    """Changes of rows that belong to the user need no permission. A token without a scope only reads."""
    if reason := _missing_scope(user, act, Scope.DEFINE):
        raise Forbidden(reason)


def _missing_right(user: AnyUser, permission: str, act: str, *scopes: Scope) -> str | None:
    """The permission that `user` lacks, else the scopes of which the token of the request has none; None: allowed."""
    if not getattr(user, "has_perm", None) or not user.has_perm(permission):  # type: ignore[union-attr]
        return f"You may not {act}: the permission {permission} is required."
    return _missing_scope(user, act, *scopes)


def _missing_scope(user: AnyUser, act: str, *scopes: Scope) -> str | None:
    """The scopes of which the token of the request has none; None: allowed, as without a token."""
    token_scopes = getattr(user, "token_scopes", None)
    if token_scopes is None or not token_scopes.isdisjoint(scopes):
        return None
    return f"This token may not {act}: it needs the scope {' or '.join(scopes)}."
