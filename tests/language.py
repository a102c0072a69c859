"""Measures the prose of the project: vague words per 1,000, first words of docstrings, names, widths.

Lines of templates have at most 140 columns.

Counted are docstrings and comments of Python files, and the paragraphs of Markdown outside code. The limits come from
mature code bases (h11, websockets, procrastinate): each stays below them. The script reads text and imports nothing.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = ("runtime", "weir", "spark_jobs", "console", "stack", "examples", "benchmarks")
TESTS: Final = "tests"  #: their names are measured, and not their prose
DOCUMENTS: Final = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "docker")
MARKDOWN_COLUMNS: Final = 120
TEMPLATES: Final = ("templates", "console/api/templates")
TEMPLATE_COLUMNS: Final = 140
PARTICIPLE_PERCENT: Final = 3.0
NOUNLESS_PERCENT: Final = 1.0
#: Names of variables and parameters that do not name the thing; ten mature code bases have 0.3 to 1.0 % of them.
NOUNLESS: Final = {
    "again", "asked", "both", "chosen", "done", "found", "fresh", "given", "gone", "got", "held", "kept", "known",
    "made", "mine", "more", "named", "needed", "one", "others", "ours", "own", "rest", "seen", "shown", "taken",
    "theirs", "told", "wanted", "whole",
}  # fmt: skip

#: Kind of vague word -> (its pattern, most per 1,000 words of a package or document).
VAGUE: Final = {
    "what/who": (re.compile(r"(?i)\b(what|whatever|who|whoever|whom)\b"), 3.0),
    "nobody": (re.compile(r"(?i)\b(nobody|somebody|everybody|anybody|someone|nothing)\b"), 1.0),
    "one/those": (re.compile(r"(?i)\b(one|ones|those|others)\b"), 4.0),
    "say/tell": (re.compile(r"(?i)\b(say|says|said|saying|tell|tells|told|telling|hear|hears|heard|words?)\b"), 1.5),
}
PRONOUN_FIRST: Final = re.compile(
    r"(?i)(what|whatever|who|whoever|whom|whose|ones?|those|others|it|they|nobody|nothing|somebody|everybody)\b"
)
IRREGULAR_PARTICIPLE: Final = re.compile(
    r"(begun|bound|bought|brought|built|caught|chosen|dealt|done|drawn|driven|fallen|fed|felt|found|fought|forgotten|frozen"
    r"|given|gone|grown|heard|held|hidden|kept|known|laid|lain|led|left|lent|lost|made|meant|met|paid|risen|said|seen|sent"
    r"|shown|sold|spent|spoken|stolen|stood|sunk|swept|taken|taught|thought|thrown|told|torn|understood|won|worn|written)"
)
COMMANDS_IN_ED: Final = re.compile(r"(embed|exceed|feed|need|proceed|seed|shed|speed|succeed)")
QUERY_PREFIX: Final = re.compile(r"_*(is|has|was|are|on|can|test)_")
PARTICLES: Final = re.compile(
    r"(_(about|as|at|away|back|by|down|for|from|in|into|of|off|on|out|over|through|to|up|with))+$"
)


@dataclass(slots=True)
class Prose:
    """The text of a package or a document, and the names that its functions have."""

    words: int = 0
    vague: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in VAGUE})  # kind -> places
    pronoun_first: list[str] = field(default_factory=list)
    functions: int = 0
    participles: list[str] = field(default_factory=list)
    bindings: int = 0
    nounless: list[str] = field(default_factory=list)
    wide: list[str] = field(default_factory=list)

    def add_text(self, text: str, place: str) -> None:
        prose = re.sub(r"``.*?``|`[^`]*`", "code", text, flags=re.DOTALL)  # names in backticks are no prose
        self.words += len(re.findall(r"[A-Za-z][A-Za-z'-]*", prose))
        for kind, (pattern, _) in VAGUE.items():
            for match in pattern.finditer(prose):
                around = prose[max(match.start() - 30, 0) : match.end() + 30].replace("\n", " ")
                self.vague[kind].append(f"{place}: …{around}…")

    def rate(self, kind: str) -> float:
        return 1000 * len(self.vague[kind]) / max(self.words, 1)

    def participle_percent(self) -> float:
        return 100 * len(self.participles) / max(self.functions, 1)

    def nounless_percent(self) -> float:
        return 100 * len(self.nounless) / max(self.bindings, 1)

    def name_faults(self) -> Iterator[str]:
        if self.nounless_percent() > NOUNLESS_PERCENT:
            yield f"variables without a noun: {self.nounless_percent():.1f} %, limit {NOUNLESS_PERCENT} %"

    def faults(self) -> Iterator[str]:
        for kind, (_, limit) in VAGUE.items():
            if self.rate(kind) > limit:
                yield f"{kind}: {self.rate(kind):.1f} per 1,000 words, limit {limit}"
        if self.participle_percent() > PARTICIPLE_PERCENT:
            yield f"functions named by a participle: {self.participle_percent():.1f} %, limit {PARTICIPLE_PERCENT} %"
        yield from self.name_faults()
        yield from (f"{place}: a docstring begins with a pronoun" for place in self.pronoun_first)
        yield from (f"{place}: wider than {MARKDOWN_COLUMNS} columns" for place in self.wide)

    def places(self) -> Iterator[str]:
        for kind, places in self.vague.items():
            yield from (f"{kind}  {place}" for place in places)
        yield from (f"participle  {place}" for place in self.participles)
        yield from (f"no noun  {place}" for place in self.nounless)
        yield from (f"first word  {place}" for place in self.pronoun_first)


def is_participle(name: str) -> bool:
    """Whether the name ends with a participle: `stored` and `held_back` do, `is_stored` and `stored_rows` do not."""
    if QUERY_PREFIX.match(name):
        return False
    last = PARTICLES.sub("", name).rpartition("_")[2]
    regular = last.endswith("ed") and len(last) > 3 and not COMMANDS_IN_ED.fullmatch(last)
    return regular or IRREGULAR_PARTICIPLE.fullmatch(last) is not None


def add_python(source: str, place: str, prose: Prose) -> None:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Store(), lineno=line) | ast.arg(arg=name, lineno=line):
                prose.bindings += 1
                if name.strip("_") in NOUNLESS:
                    prose.nounless.append(f"{place}:{line} {name}")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            prose.functions += 1
            if is_participle(node.name):
                prose.participles.append(f"{place}:{node.lineno} {node.name}")
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                at = f"{place}:{node.body[0].lineno}"
                prose.add_text(text, at)
                if PRONOUN_FIRST.match(text):
                    prose.pronoun_first.append(f"{at} {text.splitlines()[0][:60]}")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            prose.add_text(token.string.lstrip("#: "), f"{place}:{token.start[0]}")


def add_markdown(source: str, place: str, prose: Prose) -> None:
    fenced = False
    for number, line in enumerate(source.splitlines(), 1):
        if len(line) > MARKDOWN_COLUMNS and not line.startswith(("|", "[", "!")):
            prose.wide.append(f"{place}:{number}")
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            prose.add_text(re.sub(r"\]\([^)]*\)", "]", line), f"{place}:{number}")


def measure(paths: Sequence[str]) -> Prose:
    """The prose of the tracked files below `paths`."""
    prose = Prose()
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *paths], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        file = ROOT / name
        if name.endswith(".py") and "/migrations/" not in name and file.exists():
            add_python(file.read_text(), name, prose)
        elif name.endswith(".md") and file.exists():
            add_markdown(file.read_text(), name, prose)
    return prose


def wide_lines(paths: Sequence[str] = TEMPLATES) -> Iterator[str]:
    """The lines of templates that are wider than `TEMPLATE_COLUMNS`."""
    for folder in paths:
        for file in sorted(path for path in (ROOT / folder).rglob("*") if path.is_file()):
            for number, line in enumerate(file.read_text().splitlines(), 1):
                if len(line) > TEMPLATE_COLUMNS:
                    yield f"{file.relative_to(ROOT)}:{number}: wider than {TEMPLATE_COLUMNS} columns"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.language", description=__doc__)
    parser.add_argument("paths", nargs="*", help="files or folders; without: each package and document by itself")
    parser.add_argument("-v", "--verbose", action="store_true", help="print each place of a vague word")
    options = parser.parse_args(arguments)
    groups = (
        [options.paths]
        if options.paths
        else [[path] for path in (*PACKAGES, TESTS, *DOCUMENTS) if (ROOT / path).exists()]
    )
    failed = False
    print(f"{'':14}{'words':>8}" + "".join(f"{kind:>11}" for kind in VAGUE) + f"{'participle':>12}{'no noun':>12}")
    for paths in groups:
        prose = measure(paths)
        rates = "".join(f"{prose.rate(kind):11.1f}" for kind in VAGUE)
        names = "".join(f"{share:10.1f} %" for share in (prose.participle_percent(), prose.nounless_percent()))
        print(f"{' '.join(paths)[-40:]:14}{prose.words:8}{rates}{names}")
        faults = prose.name_faults() if paths == [TESTS] else prose.faults()
        for fault in (*faults, *(prose.places() if options.verbose else ())):
            failed = True
            print(f"    {fault}")
    for fault in () if options.paths else wide_lines():
        failed = True
        print(f"    {fault}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
