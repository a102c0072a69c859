"""The REST API by its own document: schemathesis sends requests to each operation and checks each response.

No response has an undocumented status, media type or body. No request is accepted against the document, or refused
although the document allows it. Refusals that depend on rows or settings are listed in `BY_ROWS`.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
import schemathesis
from django.db import connection
from django.test import Client
from pytest_django.live_server_helper import LiveServer
from schemathesis import engine
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events

from console.accounts import tokens
from console.accounts.models import SavedView, Scope, User
from console.accounts.throttling import LoginThrottle
from console.checkpoints.models import StateQuery
from console.jobs.models import Connection
from console.operations.models import BulkOperation, Operation, Schedule
from runtime.core.job.lifecycle import RunState
from tests.console.conftest import SCHEMA, MakeCheckpoint, MakeRun

AT: Final = datetime(2026, 1, 1, tzinfo=UTC)
#: Fields that a request may be refused for, although the document allows it: they depend on rows, on settings, on the
#: parameters of a pipeline or on each other.
BY_ROWS: Final[Mapping[str, tuple[str, ...]]] = {
    "POST /api/v1/jobs/": ("/duplicate_of", "/start", "/name", "/params", "/package"),
    "PATCH /api/v1/jobs/{id}/": ("/name", "/owner", "/tags", "/runbook"),
    "POST /api/v1/jobs/bulk/": ("/jobs", "/tags"),
    "POST /api/v1/jobs/{job}/operations/": ("/params",),
    "POST /api/v1/jobs/{job}/versions/": ("/params", "/parallelism", "/settings", "/package"),
    "POST /api/v1/jobs/{job}/versions/difference/": ("/params", "/parallelism", "/settings", "/package"),
    "GET /api/v1/jobs/{job}/checkpoints/compare/": ("/other", "/base"),
    "GET /api/v1/jobs/{job}/checkpoints/retention/": ("/keep",),
    "GET /api/v1/jobs/{job}/mapping/": ("/params/path",),
    "GET /api/v1/jobs/{job}/rescale/": ("/parallelism",),
    "GET /api/v1/jobs/{job}/versions/difference/": ("/base", "/other"),
    "GET /api/v1/runs/{run}/metrics/": ("/operator", "/from", "/to", "/step"),
    "GET /api/v1/runs/{run}/metrics/subtasks/": ("/operator",),
}

schemathesis.serializer.alias("application/zip", "application/octet-stream")


def findings(config: dict[str, Any], document: Any, token: str | None, leaver: User) -> Iterator[str]:
    """Failed checks of requests with `token`; None: anonymous. `leaver` has the tokens that requests revoke."""
    schema = schemathesis.openapi.from_dict(document, config=SchemathesisConfig.from_dict(config))
    if token is not None:

        @schema.auth(refresh_interval=None)
        class _Auth:
            def get(self, case: Any, context: Any) -> str:
                try:
                    return tokens.issue(leaver, scopes=Scope).text if "/auth/tokens/" in case.path else str(token)
                finally:
                    connection.close()  # of a thread of schemathesis

            def set(self, case: Any, data: str, context: Any) -> None:
                case.headers["Authorization"] = f"Bearer {data}"

    for event in engine.from_schema(schema).execute():
        if isinstance(event, events.NonFatalError):
            yield f"{event.label}: {event.value}"
        if isinstance(event, events.ScenarioFinished):
            yield from _failed_checks(event)
            if token is None and "/auth/token/" not in str(event.label):
                for sent in event.recorder.interactions.values():
                    if sent.response is not None and sent.response.status_code < 300:
                        yield f"{event.label} answers without a login"


def _failed_checks(event: events.ScenarioFinished) -> Iterator[str]:
    for case, checks in event.recorder.checks.items():
        sent = event.recorder.interactions[case]
        for check in checks:
            if check.failure_info is None:
                continue
            failure, response = check.failure_info.failure, sent.response
            if check.name == "positive_data_acceptance" and response and _depends_on_rows(event.label, response):
                continue
            body = response.content.decode(errors="replace")[:400] if response else ""
            text = " ".join(failure.message.split())[:300]
            yield (
                f"{check.name}: {event.label} {response and response.status_code}: {failure.title}: {text}: "
                f"{sent.request.method} {sent.request.uri} {sent.request.body!r:.300} -> {body}"
            )


def _depends_on_rows(label: str | None, response: Any) -> bool:
    """422 with a code of its own, or a refusal of a field in `BY_ROWS`."""
    if response.status_code not in (400, 422):
        return False
    problem = json.loads(response.content)
    if response.status_code == 422 and problem["code"] != "invalid-field":
        return True
    known = BY_ROWS.get(str(label))
    return known is not None and all(error["pointer"].startswith(known) for error in problem["errors"])


def config_for(url: str, examples: int, *, is_thorough: bool) -> dict[str, Any]:
    """`is_thorough`: also each limit of each field, alone and combined, and methods that have no operation."""
    return {
        "base-url": url,
        "continue-on-failure": True,
        "generation": {
            "max-examples": examples, "deterministic": True, "no-shrink": True, "database": "none",
            "allow-x00": False, "with-security-parameters": False,
        },
        "phases": {
            "examples": {"enabled": False}, "coverage": {"enabled": is_thorough}, "stateful": {"enabled": False},
        },
        "checks": {
            "positive_data_acceptance": {"expected-statuses": ["2xx", "3xx", "401", "403", "404", "409", "412"]},
            "negative_data_rejection": {
                "expected-statuses": ["400", "401", "403", "404", "406", "409", "412", "415", "422", "428"]
            },
            "missing_required_header": {"expected-statuses": ["401", "403", "428"]},
            "ignored_auth": {"enabled": is_thorough},
            "unsupported_method": {"enabled": is_thorough},
            "allow_header_conformance": {"enabled": is_thorough},
        },
    }  # fmt: skip


@pytest.fixture
def document(client: Client, operator: User, make_run: MakeRun, make_checkpoint: MakeCheckpoint) -> Any:
    """The served document, in which parameters of paths and of the pipeline are those of rows that exist."""
    run = make_run(RunState.RUNNING)
    facts = {
        "operators": [{"uid": "sums", "name": "Sums", "subtasks": 2, "state_bytes": 100, "has_state": True}],
        "duration_ms": 5, "size_bytes": 100, "written_bytes": 100,
    }  # fmt: skip
    checkpoint = make_checkpoint(run, 1, completed_at=AT, **facts)
    make_checkpoint(run, 2, kind="savepoint", completed_at=AT + timedelta(seconds=1), **facts)
    Connection.objects.create(name="warehouse", address="host:1")
    Schedule.objects.create(job=run.job, operation="savepoint", every_hours=1, owner=operator, next_at=AT)
    table = {
        "columns": [{"name": "k", "type": "bigint", "is_key": True}],
        "rows": [[1]],
        "is_cut": False,
        "cursor": None,
    }
    request = {"kind": "sql", "name": "all", "sql": "SELECT 1"}
    query = StateQuery.objects.create(
        checkpoint=checkpoint, request=request, requested_by=operator, state="succeeded", result=table
    )
    ids: dict[str, Any] = {
        "job": run.job_id, "run": run.pk, "checkpoint": checkpoint.pk, "version": run.version_id,
        "operation": str(Operation.objects.create(job=run.job, kind="savepoint", state="succeeded").pk),
        "bulk": str(BulkOperation.objects.create(kind="stop", tags=[], results=[], requested_by=operator).pk),
        "state-querie": query.pk,
        "saved-view": SavedView.objects.create(user=operator, name="mine", query="q=a").pk,
    }  # fmt: skip
    document = client.get("/api/v1/schema/", {"format": "json"}).json()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                if parameter.get("name") == "If-Match":
                    parameter["schema"]["enum"] = ["*"]
                if parameter.get("in") == "path":
                    folder = path.split("/{")[0].split("/")[-1].removesuffix("s")
                    name = folder if parameter["name"] == "id" else parameter["name"]
                    if name in ids:
                        parameter["schema"] = {"type": parameter["schema"]["type"], "enum": [ids[name]]}
    document["components"]["schemas"]["VersionRequestRequest"]["properties"]["params"] = SCHEMA
    return document


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "is_thorough",
    [False, pytest.param(True, marks=[pytest.mark.long, pytest.mark.timeout(1_800)])],
)
def test_each_response_is_as_documented(
    operator: User, viewer: User, document: Any, live_server: LiveServer, monkeypatch: pytest.MonkeyPatch,
    is_thorough: bool,
) -> None:  # fmt: skip
    monkeypatch.setattr(LoginThrottle, "rate", "100000/min", raising=False)
    leaver = User.objects.create_user("leaver")
    found: list[str] = []
    for user, examples in ((operator, 4), (viewer, 1), (None, 1)):
        token = None if user is None else tokens.issue(user, scopes=Scope).text
        config = config_for(live_server.url, examples, is_thorough=is_thorough and user == operator)
        found.extend(findings(config, document, token, leaver))
    assert not found, f"{len(found)} findings\n" + "\n".join(found[:50])
