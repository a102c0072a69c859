"""Limits of the texts that users give: names and notes of snapshots, names of schedules, reasons, reviews."""

from typing import Final

from console.accounts.refusals import InvalidField
from console.accounts.storable import text_problem

MAX_NAME_LENGTH: Final = 100
MAX_NOTE_LENGTH: Final = 1000


def require_texts(name: str | None, note: str | None) -> None:
    """Checks the name and the note of a snapshot; None: it is not changed.

    Raises:
        InvalidField: names the text that is too long or cannot be shown.
    """
    if name is not None:
        require_name(name, "params.name")
    if note is not None:
        require_text(note, "params.note", MAX_NOTE_LENGTH)


def require_name(name: str, field: str) -> None:
    """Checks a name. Raises InvalidField with the name of the field."""
    require_text(name, field, MAX_NAME_LENGTH)
    if name and not name.isprintable():
        raise InvalidField(field, "must be a single line of printable characters")


def require_text(text: str, field: str, limit: int) -> None:
    """Raises InvalidField with the name of the field."""
    if why := text_problem(text):
        raise InvalidField(field, why)
    if len(text) > limit:
        raise InvalidField(field, f"at most {limit} characters")
