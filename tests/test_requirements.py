"""The list of requirements: what is counted, what is told, and what is refused."""

from pathlib import Path

import pytest

from tests.requirements import ids_in, main, names_of

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
        "  S0-01  unit        3 tests  It ends",
        "  S0-02              no test  It ends *well*",
        "",
        "1 of 2 lines are named by a test, at its strongest:",
        "    0 spark",
        "    0 threads",
        "    0 contract",
        "    0 simulator",
        "    1 unit",
    ]


def test_the_tests_are_named_when_asked(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-v"], project) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if "::" in line]
    assert lines == [f"tests/core/test_ends.py::{name} (unit)" for name in ("test_one", "StateMachine", "test_two")]


def test_an_id_that_does_not_exist_is_named_with_its_test(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "tests/test_more.py").write_text('def test_x() -> None:\n    """S0-02..03."""\n')
    assert main([], project) == 1
    out = capsys.readouterr().out.splitlines()
    assert "2 of 2 lines are named by a test, at its strongest:" in out
    assert out[-1:] == [
        "S0-03 does not exist; named by tests/test_more.py::test_x",
    ]


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ("- **S0-01** Again\n", "requirements.md, line 9: S0-01 is there twice"),
        ("- [ ] S0-03 An old form\n", "requirements.md, line 9: a requirement is"),
    ],
)
def test_a_bad_line_of_the_document_is_named(
    project: Path, capsys: pytest.CaptureFixture[str], added: str, message: str
) -> None:
    (project / "docs/requirements.md").write_text(DOCUMENT + added)
    assert main([], project) == 1
    assert message in capsys.readouterr().err


def test_ranges_are_spelled_out() -> None:
    assert ids_in("S0-09..11, S4-17 and figure S0-1x") == ["S0-09", "S0-10", "S0-11", "S4-17"]


MARKED = {
    "jobs/test_a.py": """
def test_threads() -> None:
    '''S0-01.'''

def test_both(jobs: Jobs) -> None:
    '''S0-02.'''
""",
    "contracts/test_b.py": """
@pytest.mark.spark
@pytest.mark.slow
def test_marked() -> None:
    '''S0-03.'''

@pytest.fixture
def made(jobs: Jobs) -> int: ...

def test_through_a_fixture(made: int) -> None:
    '''S0-04.'''

def test_contract() -> None:
    '''S0-05.'''
""",
    "stack/test_c.py": """
pytestmark = [pytest.mark.browser, pytest.mark.slow]
def test_module() -> None:
    '''S0-06.'''
""",
}


def test_the_level_of_a_test_follows_from_markers_fixtures_and_folder(tmp_path: Path) -> None:
    for name, text in MARKED.items():
        (tmp_path / "tests" / name).parent.mkdir(parents=True)
        (tmp_path / "tests" / name).write_text(text)
    levels = {test_name: test.level for test_name, (test,) in names_of(tmp_path / "tests").items()}
    assert levels == {
        "S0-01": "threads",
        "S0-02": "spark",
        "S0-03": "spark",
        "S0-04": "spark",
        "S0-05": "contract",
        "S0-06": "spark",
    }


def test_the_tests_of_this_project_name_only_what_exists_and_250_lines_are_shown_on_spark(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.endswith(" spark")]
    assert int(line.split()[0]) >= 250
