"""Documents agree with the code: links, variables, the reference of settings, the job of the README."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import settings_page

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted(
    path for folder in (".", "benchmarks", "docker", "docs/**", "tests") for path in ROOT.glob(f"{folder}/*.md")
)
MAX_PAGE_BYTES = 12 * 1024
#: Set by a process of Weir for another, by tests, or explained where `weir` and the examples are.
INTERNAL = {
    "DJANGO_SETTINGS_MODULE", "WEIR_BEAT_FILE", "WEIR_CHROMIUM", "WEIR_LOGS", "WEIR_PACKAGE", "WEIR_PASSWORD",
    "WEIR_SECRET_", "WEIR_SECRET_EXAMPLES_URL", "WEIR_SUPERVISED", "WEIR_TEST_EXTERNAL", "WEIR_TEST_HOME",
    "WEIR_TOKEN", "WEIR_URL",
}  # fmt: skip


@pytest.mark.parametrize("page", ["CHANGELOG.md", "README.md"])
def test_the_first_pages_of_a_reader_are_short(page: str) -> None:
    assert (ROOT / page).stat().st_size <= MAX_PAGE_BYTES


def test_the_reference_of_settings_is_current() -> None:
    assert settings_page.PAGE.read_text() == settings_page.text(), "`make settings` writes the page"


def test_every_variable_has_a_row_in_the_page_of_operation() -> None:
    code = "".join(
        path.read_text() for package in ("console", "runtime", "spark_jobs", "stack", "weir")
        for path in (ROOT / package).rglob("*.py")
    )  # fmt: skip
    read = set(re.findall(r'"((?:DJANGO|WEIR)_[A-Z0-9_]+)"', code)) - INTERNAL
    page = (ROOT / "docs/operation.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    explained = {name for row in rows for name in re.findall(r"`([A-Z0-9_]+)`", row)}
    assert read - explained == set()
    assert {name for name in explained if name.startswith(("DJANGO_", "WEIR_"))} - read == set(), "no longer read"


def anchors(document: Path) -> set[str]:
    """Addresses of the headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.+)$", document.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(document: Path) -> Iterator[str]:
    prose = re.sub(r"(?ms)^```.*?^```|`[^`\n]*`", "", document.read_text())
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose):
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        if not file.exists() or (anchor and anchor not in anchors(file)):
            yield target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(document: Path) -> None:
    assert list(broken_links(document)) == []


def without_docstrings(code: str) -> str:
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


def test_the_job_of_the_readme_is_the_pipeline_wordcount() -> None:
    code = re.findall(r"(?ms)^```python\n(.*?)^```", (ROOT / "README.md").read_text())[0]
    pipeline = (ROOT / "examples/pipelines/wordcount.py").read_text()
    assert without_docstrings(code) == without_docstrings(pipeline)
