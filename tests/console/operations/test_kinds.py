"""The contract of each kind of operation, over the registry: a new kind is tested without a line here."""

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import connection
from django.db.models import Q
from django.utils import timezone
from pytest_django.fixtures import Settings

from console.accounts.models import Scope, User
from console.accounts.refusals import Conflict, Forbidden, Refused
from console.checkpoints.models import Checkpoint
from console.jobs.models import Job, Run
from console.operations.job_state import JobState
from console.operations.kinds.snapshot import pin
from console.operations.legality import allowed_on, allowed_operation
from console.operations.maintenance import begin_maintenance
from console.operations.models import Operation, OperationKind, Schedule
from console.operations.operation_type import JobOperation, OperationType, SnapshotOperation
from console.operations.registry import check_kinds, operation_type, operation_types, requestable_types, types_of
from console.operations.services import AcceptedOperation, OperationRequestContext, request, withdraw_operation
from tests.console.stored import store
from tests.console.ui import rows
from tests.plain_commands import FILE, text
from weir.control.__main__ import _COMMANDS_OF_ACTS, main

pytestmark = pytest.mark.django_db

OPENAPI = Path(__file__).parents[3] / "docs" / "api" / "openapi.json"
#: Parameters that a request needs besides `checkpoint`. A kind without an entry needs none.
PARAMS: dict[str, dict[str, Any]] = {
    "rescale": {"parallelism": 1},
    "rollback": {"accept_repeated_output": True},
    "start": {"accept_repeated_output": True},
    "restore": {"accept_repeated_output": True},
    "label": {"name": "before the upgrade"},
    "schedule": {"every_hours": 6},
    "assign": {"user": "operator"},
    "comment": {"text": "read twice"},
    "review": {"state": "reviewed"},
}
TYPES = [pytest.param(each, id=each.kind) for each in requestable_types()]


@pytest.fixture
def savepoint(tmp_path: Path, settings: Settings) -> Checkpoint:
    """A savepoint of a running job, with its files."""
    settings.WEIR_SAVEPOINT_ROOTS = (*settings.WEIR_SAVEPOINT_ROOTS, str(tmp_path / "backup"))
    savepoint = rows.checkpoint(rows.run(rows.job()), 5, kind="savepoint")
    store(savepoint)
    return savepoint


def arrange(operation: OperationType, savepoint: Checkpoint) -> None:
    """Brings the job into a state in which the operation is legal."""
    if isinstance(operation, JobOperation) and operation.conflict(JobState(savepoint.job, savepoint.run)):
        Run.objects.filter(pk=savepoint.run_id).update(state="stopped", ended_at=timezone.now())
    if operation.kind == OperationKind.UNPIN:
        Checkpoint.objects.filter(pk=savepoint.pk).update(pinned_at=timezone.now())
    if operation.kind == OperationKind.UNSCHEDULE:
        due = timezone.now() + timedelta(hours=1)
        Schedule.objects.create(
            job=savepoint.job, operation="savepoint", every_hours=1, owner=rows.operator_user("ada"), next_at=due
        )


def params_of(operation: OperationType, savepoint: Checkpoint, tmp_path: Path) -> dict[str, Any]:
    fields = getattr(operation.params, "__struct_fields__", ())
    params: dict[str, Any] = {"checkpoint": savepoint.pk} if "checkpoint" in fields else {}
    if operation.kind == OperationKind.COPY:
        params["target"] = str(tmp_path / "backup")
    return {**params, **PARAMS.get(operation.kind, {})}


@pytest.fixture
def params(operation: OperationType, savepoint: Checkpoint, tmp_path: Path) -> dict[str, Any]:
    arrange(operation, savepoint)
    return params_of(operation, savepoint, tmp_path)


def ask(
    user: User, job: Job, operation: OperationType, params: dict[str, Any], key: str | None = None
) -> AcceptedOperation:
    return request(OperationRequestContext(user=user, idempotency_key=key), job, operation.kind, params)


@pytest.mark.parametrize("operation", TYPES)
def test_it_needs_the_permission_and_the_scope_of_its_right(
    viewer: User, operator: User, savepoint: Checkpoint, operation: OperationType, params: dict[str, Any]
) -> None:
    with pytest.raises(Forbidden, match="the permission operations"):
        ask(viewer, savepoint.job, operation, params)
    for scope in Scope:
        operator.token_scopes = frozenset({scope})
        is_allowed = scope is Scope.OPERATE or (scope is Scope.REVIEW and operation.is_review)
        assert (operation.right_refusal(operator) is None) is is_allowed, scope


@pytest.mark.parametrize("operation", TYPES)
def test_a_repeated_request_is_the_same_operation(
    operator: User, savepoint: Checkpoint, operation: OperationType, params: dict[str, Any]
) -> None:
    first = ask(operator, savepoint.job, operation, params, "k")
    assert (first.replayed, first.operation.kind) == (False, operation.kind)
    repetition = ask(operator, savepoint.job, operation, params, "k")
    assert (repetition.replayed, repetition.operation.pk) == (True, first.operation.pk)
    with pytest.raises(Refused) as refused:
        ask(operator, rows.job("other"), operation, params, "k")
    assert refused.value.code == "idempotency-key-reused"


@pytest.mark.parametrize("operation", TYPES)
def test_maintenance_refuses_what_touches_runs_or_files(
    operator: User, savepoint: Checkpoint, operation: OperationType, params: dict[str, Any]
) -> None:
    begin_maintenance(operator, "the storage moves")
    if not operation.blocked_by_maintenance:
        assert ask(operator, savepoint.job, operation, params).operation.kind == operation.kind
        return
    with pytest.raises(Conflict, match="the storage moves") as refused:
        ask(operator, savepoint.job, operation, params)
    assert refused.value.code == "maintenance"
    assert not Operation.objects.exists()


@pytest.mark.parametrize("operation", TYPES)
def test_a_button_is_disabled_exactly_when_the_request_is_refused(
    operator: User, savepoint: Checkpoint, operation: OperationType, params: dict[str, Any]
) -> None:
    def reason() -> str:
        row = Checkpoint.objects.select_related("job", "run").get(pk=savepoint.pk)
        if isinstance(operation, JobOperation):
            return allowed_operation(operation.kind, row.job, row.run, operator).reason
        return allowed_on(row, operation.kind, operator).reason

    if isinstance(operation, JobOperation | SnapshotOperation):
        assert reason() == ""
    ask(operator, savepoint.job, operation, params)
    if isinstance(operation, JobOperation | SnapshotOperation) and (why := reason()):
        with pytest.raises(Refused):
            ask(operator, savepoint.job, operation, params)
        assert why.endswith(".")


@pytest.mark.parametrize("operation", TYPES)
def test_an_archived_job_begins_no_run(
    operator: User, savepoint: Checkpoint, operation: OperationType, params: dict[str, Any]
) -> None:
    Job.objects.filter(pk=savepoint.job_id).update(archived_at=timezone.now())
    job = Job.objects.get(pk=savepoint.job_id)
    if operation.begins_run:
        with pytest.raises(Conflict) as refused:
            ask(operator, job, operation, params)
        assert "archived" in refused.value.detail
    else:
        assert ask(operator, job, operation, params).operation.kind == operation.kind


@pytest.mark.parametrize("operation", TYPES)
def test_a_withdrawal_ends_it_or_is_refused_with_the_reason(
    operator: User, savepoint: Checkpoint, operation: OperationType, params: dict[str, Any]
) -> None:
    row = ask(operator, savepoint.job, operation, params).operation
    if why := operation_type(row.kind).withdrawal_refusal(row):
        with pytest.raises(Conflict) as refused:
            withdraw_operation(operator, row)
        assert (refused.value.code, refused.value.detail) == ("cannot-withdraw", why)
        return
    assert operation.withdrawal_effect(row).endswith(".")
    withdraw_operation(operator, row)
    row.refresh_from_db()
    assert (row.state, (row.error or {})["code"]) == ("failed", "withdrawn")
    with pytest.raises(Conflict):
        withdraw_operation(operator, row)


@pytest.mark.parametrize("operation", TYPES)
def test_the_api_document_has_its_parameters(operation: OperationType) -> None:
    body = json.loads(OPENAPI.read_text())["components"]["schemas"]["OperationRequestRequest"]
    titles = [schema["title"] for schema in body["properties"]["params"]["anyOf"]]
    kinds = [kind for title in titles for kind in title.removeprefix("Parameters of ").split(", ")]
    assert kinds.count(operation.kind) == 1


@pytest.mark.parametrize("operation", TYPES)
def test_a_command_requests_it(operation: OperationType) -> None:
    command = _COMMANDS_OF_ACTS.get(operation.kind, operation.kind.value)
    assert command.partition(" ")[0] in main.commands


def test_the_plain_commands_of_weir_are_those_of_the_classes() -> None:
    assert FILE.read_text() == text(), "`make openapi` writes the file"


def test_buttons_have_a_key_each_unless_they_are_never_possible_together() -> None:
    keys: dict[str, set[str]] = {}
    for each in types_of(JobOperation):
        keys.setdefault(each.button.key, set()).add(each.button.page or each.kind)
    assert all(len(pages) == 1 for pages in keys.values())


# ---------------------------------------------------------------- the check at start


@pytest.fixture
def second_class() -> Iterator[None]:
    """A second class of a kind, in the modules that the registry reads."""
    pin.Second = type("Second", (pin.PinOperation,), {  # type: ignore[attr-defined]
        "kind": OperationKind.PIN, "__module__": pin.__name__, "due": Q(),
    })  # fmt: skip
    yield
    del pin.Second  # type: ignore[attr-defined]


def test_each_kind_has_a_class() -> None:
    assert [each.kind for each in operation_types()] == list(OperationKind)
    assert not check_kinds()


@pytest.mark.django_db
def test_indexes_and_triggers_of_postgres_have_the_kinds_of_the_classes() -> None:
    """They are literals: a further kind of review, or with a savepoint, would be missed in silence."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_indexdef('weir_operation_reviews'::regclass)")
        (reviews,) = cursor.fetchone()
        cursor.execute("SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname = 'weir_savepoint_label'")
        (savepoints,) = cursor.fetchone()
    of_review, with_savepoint = (
        re.findall(r"'(\w+)'", part[1])
        for part in (re.search(r"kind = ANY \(ARRAY\[(.*?)\]", each) for each in (reviews, savepoints))
        if part is not None
    )
    assert of_review == [each.kind for each in operation_types() if each.is_review]
    assert with_savepoint == [each.kind for each in operation_types() if each.takes_savepoint]


@pytest.mark.usefixtures("second_class")
def test_the_check_names_a_kind_with_two_classes_and_a_class_without_texts() -> None:
    messages = [error.msg for error in run_checks() if error.id == "operations.E001"]
    assert messages == ["pin has 2 classes, not one", "Second must have a message, or be a record",
                        "Second must have a method `advance`"]  # fmt: skip


def test_the_check_names_a_kind_without_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pin, "Pin")
    assert [error.msg for error in check_kinds()] == ["pin has 0 classes, not one"]
