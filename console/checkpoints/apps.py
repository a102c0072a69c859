from django.apps import AppConfig


class CheckpointsConfig(AppConfig):
    name = "console.checkpoints"
    label = "checkpoints"
