"""Refresh the registry of pipelines now instead of at the next schedule."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from console.jobs import pipelines
from console.jobs.stages import StageFailed


class Command(BaseCommand):
    help = "Refresh the table of pipelines from what spark_jobs offers"
    requires_system_checks = ()  # `migrate`, which runs before, has made them

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            names = pipelines.sync()
        except StageFailed as failed:
            raise CommandError(f"{failed}\n{failed.error.get('log', '')}".strip()) from failed
        self.stdout.write("pipelines: " + (", ".join(names) or "none"))
