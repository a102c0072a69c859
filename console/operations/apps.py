"""Connects the ledger to the changes that it records, and registers the check of the kinds of operations."""

from django.apps import AppConfig


class OperationsConfig(AppConfig):
    name = "console.operations"

    def ready(self) -> None:
        from console.operations import ledger, registry  # noqa: F401  # models are loaded now
