"""The committed OpenAPI document: a change of the REST API changes this file too, and is so seen in a review."""

import difflib
import json
from pathlib import Path

from drf_spectacular.generators import SchemaGenerator

import weir

COMMITTED = Path(__file__).parents[3] / "docs" / "api" / "openapi.json"


def lines(document: object) -> list[str]:
    return json.dumps(document, indent=1, sort_keys=True).splitlines()


def test_the_api_is_that_of_the_committed_document() -> None:
    present = lines(SchemaGenerator().get_schema(public=True))  # type: ignore[no-untyped-call]
    committed = lines(json.loads(COMMITTED.read_text()))
    difference = "\n".join(
        difflib.unified_diff(committed, present, "docs/api/openapi.json", "this API", n=8, lineterm="")
    )
    assert not difference, f"`make openapi` writes the file:\n{difference[:4_000]}"


def test_the_document_has_the_version_of_weir() -> None:
    assert json.loads(COMMITTED.read_text())["info"]["version"] == weir.__version__


def test_the_parameters_of_operations_are_documented_by_kind() -> None:
    request = json.loads(COMMITTED.read_text())["components"]["schemas"]["OperationRequestRequest"]
    schemas = {schema["title"]: schema["properties"] for schema in request["properties"]["params"]["anyOf"]}
    assert "end_run" in schemas["Parameters of rollback"]
    assert schemas["Parameters of schedule"]["blackouts"]["type"] == "array"
    assert schemas["Parameters of clone, drill"].keys() >= {"checkpoint", "name"}
