"""SQL that an author saves with a pipeline, as far as it is checked when the pipeline is loaded."""

from typing import Any

import msgspec
import pytest

import weir
from examples.pipelines.flights import PIPELINE


class Params(msgspec.Struct):
    pass


def with_queries(queries: Any) -> weir.Pipeline[Params]:
    return weir.Pipeline(
        name="sums", description="", params=Params, build=lambda params, context: weir.Dataflow("sums"), queries=queries
    )


@pytest.mark.parametrize(
    "sql",
    ["SELECT 1", "  with a as (select 1) select * from a", "-- all\n/* of\nthem */ (SELECT 1)", "FROM sums_state"],
)
def test_a_query_reads(sql: str) -> None:
    assert with_queries({"all of them": sql}).queries == {"all of them": sql}


@pytest.mark.parametrize(
    ("queries", "words"),
    [
        ({"": "SELECT 1"}, "queries: a query needs a name"),
        ({"two\nlines": "SELECT 1"}, "queries: a query needs a name"),
        ({7: "SELECT 1"}, "queries: a query needs a name"),
        ({"all": " \n"}, "queries['all']: a query needs SQL"),
        ({"all": None}, "queries['all']: a query needs SQL"),
        ({"all": "SELECT '" + "x" * 20_000 + "'"}, "queries['all']: a query needs SQL"),
        ({"all": "DROP TABLE jobs"}, "queries['all']: a query must only read"),
        ({"all": "-- SELECT 1"}, "queries['all']: a query must only read"),
    ],
)
def test_a_query_that_cannot_be_is_refused_by_name(queries: Any, words: str) -> None:
    with pytest.raises(weir.JobRejected) as error:
        with_queries(queries)
    assert words in str(error.value)


def test_the_flights_pipeline_carries_queries() -> None:
    assert list(PIPELINE.queries) == ["open windows by airline", "open windows by day"]
