"""Create the first user from WEIR_ADMIN_USER and WEIR_ADMIN_PASSWORD. An existing user is never changed."""

import os
from typing import Any

from django.contrib.auth.password_validation import UserAttributeSimilarityValidator
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError

from console.accounts.models import User


class Command(BaseCommand):
    help = "Create the first user from WEIR_ADMIN_USER (default: operator) and WEIR_ADMIN_PASSWORD, unless it exists"
    requires_system_checks = ()  # `migrate`, which runs before, has made them

    def handle(self, *args: Any, **options: Any) -> None:
        name = os.environ.get("WEIR_ADMIN_USER") or "operator"
        if User.objects.filter(username=name).exists():
            self.stdout.write(f"user {name} exists")
            return
        password = os.environ.get("WEIR_ADMIN_PASSWORD", "")
        if not password:
            raise CommandError("WEIR_ADMIN_PASSWORD is not set")
        try:
            UserAttributeSimilarityValidator().validate(password, User(username=name))
        except ValidationError as error:
            raise CommandError(f"WEIR_ADMIN_PASSWORD: {error.messages[0]}") from error
        User.objects.create_superuser(name, password=password)
        self.stdout.write(f"user {name} created")
