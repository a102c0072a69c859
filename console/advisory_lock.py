"""Advisory locks of Postgres, which exclude concurrent passes of the same kind.

A lock belongs to the connection, so it needs no transaction. Postgres releases it when the connection ends, also by
the death of its process. A pass that has lost its connection has lost the lock, and can write no row either.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection


@contextmanager
def try_lock(key: int) -> Iterator[bool]:
    """Takes the lock for the body of the `with`. False if another connection has it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [key])
        (is_free,) = cursor.fetchone()
    try:
        yield is_free
    finally:
        if is_free:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [key])
