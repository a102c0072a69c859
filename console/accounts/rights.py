"""Permissions of signed-in users. Every user may read.

To define jobs, to operate them, and to switch maintenance mode each need a permission.

The permissions are Django's own, so the admin grants them to users and groups without any code here.
"""

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser

from console.accounts.refusals import Forbidden

AnyUser = AbstractBaseUser | AnonymousUser

_DEFINE = "jobs.add_job"
_OPERATE = "operations.add_operation"
_MAINTAIN = "operations.add_maintenance"


def define_refusal(user: AnyUser) -> str | None:
    """Why `user` may not create jobs and versions; None when they may."""
    return _missing_permission(user, _DEFINE, "define jobs")


def operate_refusal(user: AnyUser) -> str | None:
    """Why `user` may not start, stop or restore runs; None when they may."""
    return _missing_permission(user, _OPERATE, "operate jobs")


def require_define(user: AnyUser) -> None:
    if reason := define_refusal(user):
        raise Forbidden(reason)


def require_operate(user: AnyUser) -> None:
    if reason := operate_refusal(user):
        raise Forbidden(reason)


def require_maintain(user: AnyUser) -> None:
    if reason := _missing_permission(user, _MAINTAIN, "begin or end maintenance"):
        raise Forbidden(reason)


def _missing_permission(user: AnyUser, permission: str, act: str) -> str | None:
    if getattr(user, "has_perm", None) and user.has_perm(permission):  # type: ignore[union-attr]
        return None
    return f"You may not {act}: the permission {permission} is required."
