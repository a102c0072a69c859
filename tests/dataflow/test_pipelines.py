"""Parameters of a pipeline."""

import msgspec
import pytest

import weir
from runtime.dataflow.pipelines import Pipeline
from runtime.errors import JobRejected


class Params(msgspec.Struct, frozen=True):
    folder: str
    bounded: bool = False


PIPELINE = Pipeline(
    name="words", description="", params=Params, build=lambda params, context: weir.Dataflow(params.folder)
)


def test_unknown_parameters_are_refused_all_by_name() -> None:
    """A struct may permit them: a misspelled option was ignored, and the missing parameter hid all others."""
    with pytest.raises(JobRejected) as refused:
        PIPELINE.parse({"foldr": "/in", "bonded": True})
    assert str(refused.value) == "bonded, foldr: is unknown; words has folder, bounded"


def test_a_parameter_of_the_wrong_type_is_refused_by_name() -> None:
    with pytest.raises(JobRejected, match=r"^folder: Expected `str`, got `int`$"):
        PIPELINE.parse({"folder": 1})
