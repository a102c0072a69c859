"""Tokens of attempts, of runs and of standing stages, from one sequence of Postgres: each is newer than all before."""

from django.db.models import BigIntegerField, Func, Value


def next_token() -> Func:
    """Draws a token as part of an update."""
    return Func(Value("weir_token_seq"), function="nextval", output_field=BigIntegerField())
