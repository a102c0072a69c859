"""The identity of a job's code: the package that offers its pipeline, and the graph that its code compiles to.

The console stores it with a version, and with a run: the job master imports the package of the version, or the code
that is installed at its start.
"""

import json
from hashlib import blake2s
from typing import Final

import msgspec

from runtime.core.job.graph import JobGraph

_SHOWN_CHARACTERS: Final = 12  #: of a digest


class CodeIdentity(msgspec.Struct, frozen=True):
    """The code of a version or of a run.

    Args:
        package: name of the distribution that offers the pipeline; "": unknown.
        version: version of the package.
        graph: digest of the graph at the maximum parallelism, so that it does not depend on the parallelism of a run.
        digest: digest of the package in the storage that has this code; "": the code is installed.
    """

    package: str
    version: str
    graph: str
    digest: str = ""

    def __str__(self) -> str:
        name = f"{self.package} {self.version}" if self.package else "an unknown package"
        return f"{name} ({short_digest(self.digest)})" if self.digest else name


def short_digest(digest: str) -> str:
    """The characters of a package's digest that pages, texts and names of logs show."""
    return digest[:_SHOWN_CHARACTERS]


def graph_digest(graph: JobGraph) -> str:
    """A digest of the graph as the console stores it, without the types of columns.

    The types of a stream that Spark reads are known only where the compile stage has stored them: a clone lacks them.
    """
    stored = graph.to_json()
    for edge in stored["edges"]:
        del edge["key_types"], edge["value_types"]
    return blake2s(json.dumps(stored, sort_keys=True).encode(), digest_size=16).hexdigest()
