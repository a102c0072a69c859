"""The lease of a run or of a standing stage: its owner, its columns and the tokens of its processes."""

import os
import socket
import uuid
from datetime import timedelta
from typing import Any

from django.db.models import BigIntegerField, Func, Value
from django.db.models.functions import Now

#: Columns of a row without an owner that the reconciler has not observed yet.
UNOWNED: dict[str, Any] = {"lease_owner": "", "observed_beat": -1, "observed_since": None, "observed_at": None}


def new_lease_owner() -> str:
    """A unique owner name that starts with host and pid, for human readers."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


def owned_by(owner: str) -> dict[str, Any]:
    """Columns of a row that `owner` has just claimed."""
    return {**UNOWNED, "lease_owner": owner, "lease_beat": 0}


def ago(seconds: float) -> Now:
    """The time `seconds` ago by the clock of Postgres, which all leases share."""
    return Now() - timedelta(seconds=seconds)  # type: ignore[return-value]


def next_token() -> Func:
    """An UPDATE expression that draws a token. A Postgres sequence makes each token larger than all earlier tokens."""
    return Func(Value("weir_token_seq"), function="nextval", output_field=BigIntegerField())
