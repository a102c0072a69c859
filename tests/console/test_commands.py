"""Management commands."""

import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from pytest_django.fixtures import Settings

from console.accounts.models import User
from console.jobs.models import Pipeline

STAGE = Path(__file__).parent / "programs" / "stage.py"


@pytest.mark.django_db
def test_the_first_user_is_made_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("WEIR_ADMIN_USER", "ada")
    monkeypatch.setenv("WEIR_ADMIN_PASSWORD", "first")
    call_command("ensure_operator")
    monkeypatch.setenv("WEIR_ADMIN_PASSWORD", "second")
    call_command("ensure_operator")
    user = User.objects.get()
    assert user.is_superuser
    assert user.check_password("first"), "a user who exists is never changed"
    assert capsys.readouterr().out.splitlines() == ["user ada created", "user ada exists"]


@pytest.mark.django_db
def test_a_user_without_a_password_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEIR_ADMIN_PASSWORD", raising=False)
    with pytest.raises(CommandError, match="WEIR_ADMIN_PASSWORD is not set"):
        call_command("ensure_operator")


@pytest.mark.django_db
def test_pipelines_are_read_from_the_command_line(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    settings.WEIR_STAGES_COMMAND = [sys.executable, str(STAGE)]
    call_command("sync_pipelines")
    assert Pipeline.objects.get().description == "Sums"
    assert capsys.readouterr().out.strip() == "pipelines: sums"


@pytest.mark.django_db
def test_a_registry_that_cannot_be_read_leaves_the_rows(settings: Settings, pipeline: Pipeline) -> None:
    settings.WEIR_STAGES_COMMAND = [sys.executable, "-c", "import sys; sys.exit('no such module')"]
    with pytest.raises(CommandError, match=r"exit code 1\.\nno such module"):
        call_command("sync_pipelines")
    assert Pipeline.objects.get() == pipeline
