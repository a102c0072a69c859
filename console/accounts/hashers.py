"""Hashes of passwords."""

from django.contrib.auth.hashers import Argon2PasswordHasher


class Argon2(Argon2PasswordHasher):
    """Argon2id with the parameters that OWASP recommends: 19 MiB, two passes, a lane.

    Django's default of 100 MiB per hash would let a burst of sign-ins exhaust the memory of a small host.
    """

    memory_cost = 19 * 1024  # KiB
    time_cost = 2
    parallelism = 1
