"""The identity of the code that a dataflow was built from."""

from dataclasses import replace

from runtime.access.job_package import active_package
from runtime.core.job.code_identity import CodeIdentity, graph_digest
from runtime.dataflow.builder import Dataflow
from runtime.dataflow.pipelines import package_of


def code_identity(pipeline: str, flow: Dataflow, max_parallelism: int) -> CodeIdentity:
    """The identity of the code of `flow`, which the pipeline of this name has built.

    Raises:
        JobRejected: the job cannot run.
    """
    package = package_of(pipeline)
    widest = replace(flow, max_parallelism=max_parallelism).compile(max_parallelism)
    stored = active_package()
    return CodeIdentity(
        package=package.name,
        version=package.version,
        graph=graph_digest(widest.graph),
        digest=stored.digest if stored else "",
    )
