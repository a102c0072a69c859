"""The identity of a job's code: a digest of its graph, and the text that names its package."""

from dataclasses import replace

from runtime.core.job.code_identity import CodeIdentity, graph_digest
from tests.core.builders import chain


def test_a_digest_is_that_of_the_whole_graph_without_the_types_of_columns() -> None:
    graph = chain()
    renamed = replace(graph, operators=(replace(graph.operators[0], name="other"), *graph.operators[1:]))
    assert graph_digest(graph) == graph_digest(chain())
    assert graph_digest(graph) != graph_digest(renamed)
    typed = replace(graph, edges=tuple(replace(edge, value_types=(("n", "int64"),)) for edge in graph.edges))
    assert graph_digest(graph) == graph_digest(typed)
    assert graph_digest(graph) != graph_digest(replace(graph, edges=graph.edges[::-1]))
    assert graph_digest(graph) != graph_digest(replace(graph, max_parallelism=graph.max_parallelism + 1))


def test_a_package_is_named_with_its_version() -> None:
    assert str(CodeIdentity(package="shop", version="1.3", graph="")) == "shop 1.3"
    assert str(CodeIdentity(package="", version="", graph="")) == "an unknown package"
    assert str(CodeIdentity(package="shop", version="1.3", graph="", digest="0123456789abcdef")) == (
        "shop 1.3 (0123456789ab)"
    )
