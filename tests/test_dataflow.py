"""What the builder of a job takes over from its sources and sinks."""

from pathlib import Path

import pytest

from runtime.connectors.sinks.parquet import ParquetSink
from runtime.connectors.sinks.print import PrintSink
from runtime.core.graph import Guarantee
from runtime.dataflow import Dataflow
from runtime.errors import JobRejected
from tests.hosts.jobs import Numbers


class Socket(Numbers):
    """It gives what comes, and cannot give it again."""

    guarantee = "none"


class Boastful(Numbers):
    guarantee = "every-time"


def test_the_graph_carries_what_each_end_of_the_job_promises(tmp_path: Path) -> None:
    """S1-01, S1-23, S4-47: a source that cannot go back is named as such."""
    flow = Dataflow("ends")
    flow.source("socket", Socket(total=1)).sink("shown", PrintSink())
    flow.source("numbers", Numbers(total=1)).sink("files", ParquetSink(str(tmp_path)))
    found = {operator.uid: operator.guarantee for operator in flow.compile(1).graph.operators}
    assert found == {
        "socket": Guarantee.NONE,
        "shown": Guarantee.AT_LEAST_ONCE,
        "numbers": Guarantee.EXACTLY_ONCE,
        "files": Guarantee.EXACTLY_ONCE,
    }


def test_a_promise_that_nobody_knows_is_refused_by_the_name_of_its_operator() -> None:
    with pytest.raises(JobRejected, match="exactly-once, at-least-once, none") as refused:
        Dataflow("ends").source("numbers", Boastful(total=1))
    assert (refused.value.code, refused.value.field) == ("bad-guarantee", "numbers")
