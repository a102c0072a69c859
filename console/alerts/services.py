"""Silences that users begin from an incident."""

from datetime import timedelta
from typing import Final

from django.db import transaction
from django.utils import timezone

from console.accounts.models import User
from console.accounts.refusals import InvalidField
from console.accounts.rights import require_operate
from console.alerts.models import Silence
from console.incidents.models import Incident, IncidentNote, NoteKind

MAX_SILENCE_HOURS: Final = 7 * 24


@transaction.atomic
def silence(user: User, incident: Incident, hours: int) -> Silence:
    """Silences the alerts of the incident's job for some hours. A note on the incident records it.

    Raises:
        Forbidden: the user lacks the permission.
        InvalidField: too many hours, or none.
    """
    require_operate(user)
    if not 0 < hours <= MAX_SILENCE_HOURS:
        raise InvalidField("hours", f"must be 1 to {MAX_SILENCE_HOURS}")
    until = timezone.now() + timedelta(hours=hours)
    text = f"Until {until:%Y-%m-%d %H:%M} UTC."
    IncidentNote.objects.create(incident=incident, kind=NoteKind.SILENCE, text=text, created_by=user)
    return Silence.objects.create(job=incident.job, until=until, reason=f"Incident {incident.pk}", created_by=user)
