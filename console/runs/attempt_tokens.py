"""Tokens of attempts and of standing-stage processes. All come from a Postgres sequence, so each is larger than the
last.
"""

from django.db.models import BigIntegerField, Func, Value


def next_token() -> Func:
    """Draw a token as part of an UPDATE."""
    return Func(Value("weir_token_seq"), function="nextval", output_field=BigIntegerField())
