"""The permissions that Django stores, read in one query. Other backends may stand beside it."""

from typing import Any

from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import Permission
from django.http import HttpRequest


class StoredPermissions(ModelBackend):
    """Django's backend with a single query for the permissions of a user and of the user's groups; Django takes two."""

    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **kwargs: Any
    ) -> Any:
        """The user of a password. Accounts of single sign-on have none, but for superusers in an outage."""
        user = super().authenticate(request, username, password, **kwargs)
        is_refused = user is not None and user.identity and not user.is_superuser
        return None if is_refused else user

    def get_all_permissions(self, user_obj: Any, obj: Any = None) -> set[str]:
        if user_obj.is_superuser or not user_obj.is_active or obj is not None:
            return super().get_all_permissions(user_obj, obj)
        if not hasattr(user_obj, "_perm_cache"):  # Django's own cache, which a fresh user lacks
            of_user, of_groups = (
                Permission.objects.filter(**{path: user_obj}).values_list("content_type__app_label", "codename")
                for path in ("user", "group__user")
            )
            user_obj._perm_cache = {
                f"{app}.{codename}" for app, codename in of_user.order_by().union(of_groups.order_by())
            }
        permissions: set[str] = user_obj._perm_cache
        return permissions
