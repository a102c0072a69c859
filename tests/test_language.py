"""The measure of prose (`tests.language`) finds what it looks for, and only that."""

from pathlib import Path

import pytest

from tests import language
from tests.language import MARKDOWN_COLUMNS, Prose, add_markdown, add_python, is_participle


@pytest.mark.parametrize("name", ["stored", "_told", "held_back", "rows_dealt", "_carried_out"])
def test_a_participle_is_no_name_for_a_function(name: str) -> None:
    assert is_participle(name)


@pytest.mark.parametrize("name", ["is_stored", "has_ended", "on_completed", "stored_rows", "embed", "seal", "_feed"])
def test_nouns_verbs_and_questions_are_names(name: str) -> None:
    assert not is_participle(name)


def test_docstrings_and_comments_are_counted_and_code_is_not() -> None:
    prose = Prose()
    add_python(
        'def stored():\n    """What nobody says: `nothing`."""\n    return "what"  # told to others\n', "a.py", prose
    )
    assert {kind: len(places) for kind, places in prose.vague.items()} == {
        "what/who": 1,
        "nobody": 1,
        "one/those": 1,
        "say/tell": 2,
    }
    assert prose.words == 7
    assert prose.pronoun_first == ["a.py:2 What nobody says: `nothing`."]
    assert prose.participles == ["a.py:1 stored"]
    assert prose.participle_percent() == 100


def test_markdown_is_counted_outside_code_and_is_not_wide() -> None:
    prose = Prose()
    wide = "a " * MARKDOWN_COLUMNS
    add_markdown(f"Who reads this?\n```\nwhat who one\n```\n| {wide} |\n{wide}\n", "a.md", prose)
    assert [len(places) for places in prose.vague.values()] == [1, 0, 0, 0]
    assert prose.wide == ["a.md:6"]


def test_a_package_at_its_goals_has_no_faults_and_one_beyond_them_names_each() -> None:
    plain = Prose()
    add_python('"""The watermark of a channel is the largest event time that has passed."""\n', "a.py", plain)
    assert list(plain.faults()) == []
    vague = Prose()
    add_python('"""It is told what one keeps."""\n\n\ndef kept(): ...\n', "a.py", vague)
    assert [fault.split(":")[0] for fault in vague.faults()] == [
        "what/who",
        "one/those",
        "say/tell",
        "functions named by a participle",
        "a.py",
    ]


def test_a_wide_line_of_a_template_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language, "ROOT", tmp_path)
    (tmp_path / "templates" / "jobs").mkdir(parents=True)
    (tmp_path / "templates" / "jobs" / "list.html").write_text(f"{'é' * 140}\n{'a' * 141}\n")
    assert list(language.wide_lines(["templates"])) == ["templates/jobs/list.html:2: wider than 140 columns"]


def test_a_variable_without_a_noun_is_counted() -> None:
    """As a name and as a parameter; an attribute or a longer name is none."""
    prose = Prose()
    add_python("def read(wanted, rows):\n    found = self.found = found_rows = rows\n", "a.py", prose)
    assert prose.nounless == ["a.py:1 wanted", "a.py:2 found"]
    assert (prose.bindings, prose.nounless_percent()) == (4, 50)
    assert list(prose.name_faults()) == ["variables without a noun: 50.0 %, limit 1.0 %"]
