"""The mutations of `mutations.toml`: each can still be applied, and one of each document is tried."""

from pathlib import Path

import pytest

from tests.mutations import ROOT, Mutation, copy_checkout, failures, mutations
from tests.requirements import names_of

IN_CI = [mutation for mutation in mutations() if mutation.ci]


def test_each_mutation_changes_one_place_and_its_tests_name_its_lines() -> None:
    named = {(test.name, line) for line, tests in names_of(ROOT / "tests").items() for test in tests}
    for mutation in mutations():
        place = f"{mutation.lines}: {mutation.file}"
        assert (ROOT / mutation.file).read_text().count(mutation.before) == 1, place
        assert mutation.tests, place
        missing = [line for line in mutation.ids if not any((test, line) in named for test in mutation.tests)]
        assert not missing, f"{place}: {missing} are not named by {mutation.tests}"


def test_each_document_has_a_mutation_that_is_tried() -> None:
    assert sorted({line[:2] for mutation in IN_CI for line in mutation.ids}) == ["S0", "S1", "S2", "S3", "S4"]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_checkout(tmp_path_factory.mktemp("mutated"))


@pytest.mark.slow
@pytest.mark.parametrize("mutation", IN_CI, ids=lambda mutation: mutation.lines)
def test_the_tests_of_a_line_fail_without_it(checkout: Path, mutation: Mutation) -> None:
    reasons = failures(mutation, checkout)
    assert sorted(reasons) == sorted(mutation.tests), reasons
