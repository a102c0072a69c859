"""Connects the ledger to the changes that it records."""

from django.apps import AppConfig


class OperationsConfig(AppConfig):
    name = "console.operations"

    def ready(self) -> None:
        from console.operations import ledger  # noqa: F401  # models are loaded now
