"""Which requirement is shown by which tests, and at which level: ids in the docstrings of tests.

The ids are those of `docs/requirements.md`. The level of a test follows from its markers, its fixtures and its folder.
The script reads text only and imports no test; it cannot judge whether a test is right to name an id.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
LINE: Final = re.compile(r"- \*\*(S\d-\d+)\*\* (.+)")
NAMED: Final = re.compile(r"\b(S\d)-(\d+)(?:\.\.(\d+))?\b")  # S0-64 or S0-64..66

#: Strongest first. A test with a marker or a fixture of the first line runs on Spark, or starts the whole stack.
LEVELS: Final = ("spark", "threads", "contract", "simulator", "unit")
SPARK_MARKS: Final = {"spark", "browser"}
SPARK_FIXTURES: Final = {"jobs", "spark_launcher"}
FOLDERS: Final = {
    "acceptance": "spark",
    **dict.fromkeys(("jobs", "launch", "master", "slot", "task"), "threads"),
    "contracts": "contract",
    "simulation": "simulator",
}


@dataclass(frozen=True, slots=True)
class Test:
    """A test that names requirements."""

    name: str  #: `tests/core/checkpoint/test_plan.py::test_name`
    level: str


Names = Mapping[str, Sequence[Test]]  # id -> tests


class BadDocument(Exception):
    """The list of requirements cannot be read; the message names file and line."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the document under one heading."""

    title: str
    sentences: dict[str, str] = field(default_factory=dict)  # id -> sentence


def sections_of(document: Path) -> list[Section]:
    sections: list[Section] = []
    for number, line in enumerate(document.read_text().splitlines(), 1):
        if line.startswith(("## ", "### ")):
            sections.append(Section(line.lstrip("# ")))
        elif line.startswith("- "):
            _take(line, sections, f"{document.name}, line {number}")
    return sections


def _take(line: str, sections: list[Section], place: str) -> None:
    match = LINE.fullmatch(line)
    if match is None or not sections:
        raise BadDocument(f"{place}: a requirement is `- **S0-01** sentence` below a heading")
    if any(match[1] in section.sentences for section in sections):
        raise BadDocument(f"{place}: {match[1]} is there twice")
    sections[-1].sentences[match[1]] = match[2]


def ids_in(text: str) -> list[str]:
    """Every id that a text names, each once, ranges spelled out."""
    ids = [
        f"{document}-{number:02}"
        for document, first, last in NAMED.findall(text)
        for number in range(int(first), int(last or first) + 1)
    ]
    return list(dict.fromkeys(ids))


def names_of(tests: Path) -> dict[str, list[Test]]:
    """The tests that name each id."""
    names: dict[str, list[Test]] = {}
    for path in sorted(tests.rglob("test_*.py")):
        module = ast.parse(path.read_text(), str(path))
        folder = path.relative_to(tests).parts[0]
        fixtures = _fixtures_on_spark(module)
        of_module = {mark for node in module.body if _assigns_marks(node) for mark in _marks(node)}
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and _is_test(node.name):
                marks = of_module | {mark for each in node.decorator_list for mark in _marks(each)}
                on_spark = marks & SPARK_MARKS or _arguments(node) & fixtures
                level = "spark" if on_spark else FOLDERS.get(folder, "unit")
                test = Test(f"{path.relative_to(tests.parent)}::{node.name}", level)
                for requirement in ids_in(ast.get_docstring(node) or ""):
                    names.setdefault(requirement, []).append(test)
    return names


def _assigns_marks(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets)


def _marks(node: ast.AST) -> set[str]:
    """Every `pytest.mark.NAME` below a node."""
    attributes = (each for each in ast.walk(node) if isinstance(each, ast.Attribute))
    return {each.attr for each in attributes if isinstance(each.value, ast.Attribute) and each.value.attr == "mark"}


def _arguments(node: ast.FunctionDef | ast.ClassDef) -> set[str]:
    return {each.arg for each in node.args.args} if isinstance(node, ast.FunctionDef) else set()


def _fixtures_on_spark(module: ast.Module) -> set[str]:
    """The fixtures of `tests/jobs/conftest.py`, and those of this module that take one of them."""
    functions = (node for node in module.body if isinstance(node, ast.FunctionDef) and not _is_test(node.name))
    return SPARK_FIXTURES | {node.name for node in functions if _arguments(node) & SPARK_FIXTURES}


def _is_test(name: str) -> bool:
    """Also a state machine of Hypothesis, which is a class."""
    return name.startswith("test_") or name.endswith("StateMachine")


def report(sections: Sequence[Section], names: Names, verbose: bool) -> Iterator[str]:
    """A line per requirement: the strongest level that shows it, and the number of tests."""
    for section in sections:
        yield f"\n{section.title}"
        for requirement, sentence in section.sentences.items():
            tests = names.get(requirement, ())
            yield f"  {requirement}  {_strongest(tests):9}  {_count(len(tests))}  {sentence}"
            yield from (f"           {test.name} ({test.level})" for test in tests if verbose)
    ids = [requirement for section in sections for requirement in section.sentences]
    strongest = Counter(_strongest(names.get(requirement, ())) for requirement in ids)
    count = sum(requirement in names for requirement in ids)
    yield f"\n{count} of {len(ids)} lines are named by a test, at its strongest:"
    yield from (f"  {strongest[level]:>3} {level}" for level in LEVELS)


def _strongest(tests: Sequence[Test]) -> str:
    return min((test.level for test in tests), key=LEVELS.index, default="")


def _count(tests: int) -> str:
    return " no test" if tests == 0 else f"{tests:>2} test{'s' if tests > 1 else ' '}"


def unknown(sections: Sequence[Section], names: Names) -> list[str]:
    """What is wrong: ids that tests name and the document does not have."""
    ids = {requirement for section in sections for requirement in section.sentences}
    strange = {
        requirement: ", ".join(test.name for test in tests)
        for requirement, tests in sorted(names.items())
        if requirement not in ids
    }
    return [f"{requirement} does not exist; named by {tests}" for requirement, tests in strange.items()]


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """0, or 1 when a test names an id that does not exist or the document cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m tests.requirements", description=__doc__)
    parser.add_argument("-v", "--verbose", action="store_true", help="name the tests below each line")
    verbose = bool(parser.parse_args(arguments).verbose)
    try:
        sections = sections_of(root / "docs" / "requirements.md")
    except (OSError, BadDocument) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    names = names_of(root / "tests")
    wrong = unknown(sections, names)
    sys.stdout.write("\n".join([*report(sections, names, verbose), *wrong]) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
