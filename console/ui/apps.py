"""The Django app that carries static files and template tags."""

from django.apps import AppConfig


class UiConfig(AppConfig):
    name = "console.ui"
    label = "ui"
    verbose_name = "Pages"
