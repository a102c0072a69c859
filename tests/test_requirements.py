"""The list of requirements: what is counted, what is told, and what is refused."""

from pathlib import Path

import pytest

from tests.requirements import ids_in, main

DOCUMENT = "# Title\n\n## S0: ends\n\n### Part 1\n\n- **S0-01** It ends\n- **S0-02** It ends *well*\n"
TESTS = '''
"""A module may speak of S0-02."""

def test_one() -> None:
    """S0-01: as it says."""

class TestMore:
    def test_two(self) -> None:
        """S0-01, and S0-01 again."""

class StateMachine:
    """S0-01: an invariant."""

def helper() -> None:
    """S0-02 is shown by somebody else."""
'''


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for path, text in (("docs/requirements.md", DOCUMENT), ("tests/core/test_ends.py", TESTS)):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_only_the_docstrings_of_tests_count_each_once(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([], project) == 0
    assert capsys.readouterr().out.splitlines() == [
        "",
        "S0: ends",
        "",
        "Part 1",
        "  S0-01   3 tests  It ends",
        "  S0-02   no test  It ends *well*",
        "",
        "1 of 2 lines are named by a test",
    ]


def test_the_tests_are_named_when_asked(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-v"], project) == 0
    named = [line.strip() for line in capsys.readouterr().out.splitlines() if "::" in line]
    assert named == [f"tests/core/test_ends.py::{name}" for name in ("test_one", "StateMachine", "test_two")]


def test_an_id_that_does_not_exist_is_named_with_its_test(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "tests/test_more.py").write_text('def test_x() -> None:\n    """S0-02..03."""\n')
    assert main([], project) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[-2:] == [
        "2 of 2 lines are named by a test",
        "S0-03 does not exist; named by tests/test_more.py::test_x",
    ]


@pytest.mark.parametrize(
    ("added", "told"),
    [
        ("- **S0-01** Again\n", "requirements.md, line 9: S0-01 is there twice"),
        ("- [ ] S0-03 An old form\n", "requirements.md, line 9: a requirement is"),
    ],
)
def test_a_bad_line_of_the_document_is_named(
    project: Path, capsys: pytest.CaptureFixture[str], added: str, told: str
) -> None:
    (project / "docs/requirements.md").write_text(DOCUMENT + added)
    assert main([], project) == 1
    assert told in capsys.readouterr().err


def test_ranges_are_spelled_out() -> None:
    assert ids_in("S0-09..11, S4-17 and figure S0-1x") == ["S0-09", "S0-10", "S0-11", "S4-17"]


def test_the_tests_of_this_project_name_only_what_exists() -> None:
    assert main([]) == 0
