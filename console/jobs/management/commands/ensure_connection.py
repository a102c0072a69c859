"""Create a named connection. An existing one is never changed."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from console.jobs.models import Connection


class Command(BaseCommand):
    help = "Create a named connection for some pipelines, unless it exists"
    requires_system_checks = ()  # `migrate`, which runs before, has made them

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("address", help="a URL, or host:port of Kafka's servers; secrets as ${secret:NAME}")
        parser.add_argument("pipelines", nargs="+", help="names of pipelines; * for all")

    def handle(self, *args: Any, **options: Any) -> None:
        row = Connection(name=options["name"], address=options["address"], pipelines=" ".join(options["pipelines"]))
        if Connection.objects.filter(name=row.name).exists():
            self.stdout.write(f"connection {row.name} exists")
            return
        row.full_clean()
        row.save()
        self.stdout.write(f"connection {row.name} created")
