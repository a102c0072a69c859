"""Which requirement is shown by which tests: ids in the docstrings of tests, laid beside `docs/requirements.md`.

It reads text only, imports no test and no product, and does not know whether a test is right to name an id.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
LINE: Final = re.compile(r"- \*\*(S\d-\d+)\*\* (.+)")
NAMED: Final = re.compile(r"\b(S\d)-(\d+)(?:\.\.(\d+))?\b")  # S0-64 or S0-64..66

Names = Mapping[str, Sequence[str]]  # id -> tests


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
    found = LINE.fullmatch(line)
    if found is None or not sections:
        raise BadDocument(f"{place}: a requirement is `- **S0-01** sentence` below a heading")
    if any(found[1] in section.sentences for section in sections):
        raise BadDocument(f"{place}: {found[1]} is there twice")
    sections[-1].sentences[found[1]] = found[2]


def ids_in(text: str) -> list[str]:
    """Every id that a text names, each once, ranges spelled out."""
    found = [
        f"{document}-{number:02}"
        for document, first, last in NAMED.findall(text)
        for number in range(int(first), int(last or first) + 1)
    ]
    return list(dict.fromkeys(found))


def names_of(tests: Path) -> dict[str, list[str]]:
    """The tests that name each id, as `tests/core/test_plan.py::test_name`."""
    names: dict[str, list[str]] = {}
    for path in sorted(tests.rglob("test_*.py")):
        for test, docstring in _docstrings(path):
            for one in ids_in(docstring):
                names.setdefault(one, []).append(f"{path.relative_to(tests.parent)}::{test}")
    return names


def _docstrings(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and _is_test(node.name):
            yield node.name, ast.get_docstring(node) or ""


def _is_test(name: str) -> bool:
    """Also a state machine of Hypothesis, which is a class."""
    return name.startswith("test_") or name.endswith("StateMachine")


def report(sections: Sequence[Section], names: Names, verbose: bool) -> Iterator[str]:
    for section in sections:
        yield f"\n{section.title}"
        for one, sentence in section.sentences.items():
            tests = names.get(one, ())
            yield f"  {one}  {_count(len(tests))}  {sentence}"
            yield from (f"           {test}" for test in tests if verbose)
    ids = [one for section in sections for one in section.sentences]
    yield f"\n{sum(one in names for one in ids)} of {len(ids)} lines are named by a test"


def _count(tests: int) -> str:
    return " no test" if tests == 0 else f"{tests:>2} test{'s' if tests > 1 else ' '}"


def unknown(sections: Sequence[Section], names: Names) -> list[str]:
    """What is wrong: ids that tests name and the document does not have."""
    known = {one for section in sections for one in section.sentences}
    return [f"{one} does not exist; named by {', '.join(names[one])}" for one in sorted(names.keys() - known)]


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
