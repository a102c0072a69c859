"""Acts of users on an incident: notes, and who has it. They need the permission to operate jobs."""

from typing import Final

from django.db import transaction
from django.db.models.functions import Now

from console.accounts.models import User
from console.accounts.refusals import Conflict, InvalidField
from console.accounts.rights import require_operate
from console.accounts.storable import text_problem
from console.incidents.models import Incident, IncidentNote, NoteKind

MAX_NOTE_LENGTH: Final = 2000


def add_note(user: User, incident: Incident, text: str) -> IncidentNote:
    """Adds a note, also to an incident that has ended.

    Raises:
        Forbidden: the user lacks the permission.
        InvalidField: the text is empty, too long, or cannot be stored.
    """
    require_operate(user)
    text = text.strip()
    if why := text_problem(text):
        raise InvalidField("text", why)
    if not 0 < len(text) <= MAX_NOTE_LENGTH:
        raise InvalidField("text", f"must have 1 to {MAX_NOTE_LENGTH} characters")
    return IncidentNote.objects.create(incident=incident, text=text, created_by=user)


@transaction.atomic
def take(user: User, incident: Incident) -> None:
    """Records that `user` works on the incident, instead of the user who had it. Alerts are not repeated then.

    Raises:
        Forbidden: the user lacks the permission.
        Conflict: the incident has ended.
    """
    require_operate(user)
    taken = Incident.objects.filter(pk=incident.pk, closed_at=None).exclude(taken_by=user)
    if taken.update(taken_by=user, taken_at=Now()):
        IncidentNote.objects.create(incident=incident, kind=NoteKind.TAKE, created_by=user)
    incident.refresh_from_db()
    if not incident.is_open:
        raise Conflict("incident-ended", "The incident has ended: nobody needs to take it.")


@transaction.atomic
def release(user: User, incident: Incident) -> None:
    """Records that the user who has the incident works on it no more. Alerts are repeated again.

    Raises:
        Forbidden: the user lacks the permission.
    """
    require_operate(user)
    if Incident.objects.filter(pk=incident.pk).exclude(taken_by=None).update(taken_by=None, taken_at=None):
        IncidentNote.objects.create(incident=incident, kind=NoteKind.RELEASE, created_by=user)
    incident.refresh_from_db()
