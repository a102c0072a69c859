"""Connections that the web process keeps for later requests."""

from typing import cast

from django.db import connection
from django.db.backends.postgresql.base import DatabaseWrapper


def drop_pooled_connections() -> None:
    """Ends the idle connections of the pool, after a failure of one: a restart of Postgres has ended all of them.

    Otherwise each costs a request a failed check, and the pool pauses ever longer between these.
    """
    pool = cast(DatabaseWrapper, connection).pool
    if pool is not None:
        pool.drain()
