"""The user. A model of our own from the first migration, since it cannot be replaced later."""

from django.contrib.auth.models import AbstractUser


class User(AbstractUser):
    """A person or a program that signs in."""

    class Meta:
        db_table = "weir_user"
