"""The states that an operator or source declares; found by opening the operator or source without rows."""

from __future__ import annotations

from runtime.core.job.graph import Role
from runtime.core.job.ids import OperatorId
from runtime.dataflow.plan import CompiledJob
from runtime.errors import JobRejected
from runtime.ports import Operator, SourceReader
from runtime.state.backend import SubtaskState
from spark_jobs.batch.failures import call_hook
from spark_jobs.batch.subtask import JobFacts, context_of, empty_state


def role_of(job: CompiledJob, uid: str) -> Role:
    """The role of an operator. Raises JobRejected: the job has no such operator."""
    uids = [operator.uid for operator in job.graph.operators]
    if uid not in uids:
        raise JobRejected("unknown-operator", uid, f"the job has no operator {uid!r}, only {', '.join(uids)}")
    return job.graph.by_uid[OperatorId(uid)].role


def declared_state(job: CompiledJob, uid: str) -> SubtaskState:
    """The empty state of the operator at parallelism 1.

    Raises:
        JobRejected: the operator is unknown, or is a sink.
        OperatorFailure: the operator cannot be opened.
    """
    name, role = OperatorId(uid), role_of(job, uid)
    if name in job.sinks:
        raise JobRejected("cannot-bootstrap", uid, "a sink has no state that can be written")
    return state_of(job, uid, job.sources[name].reader() if role is Role.SOURCE else job.operators[name]())


def state_of(job: CompiledJob, uid: str, code: Operator | SourceReader) -> SubtaskState:
    """The empty state that `code` declares. Raises OperatorFailure: it cannot be opened."""
    facts = JobFacts.of(job)
    state = empty_state(facts, 0, 1)
    try:
        call_hook(uid, 0, "open", code.open, context_of(facts, uid, 0, 1, lambda: 0, state))
    finally:
        code.close()
    return state


def check_state(state: SubtaskState, uid: str, name: str) -> None:
    """Raises JobRejected: the operator does not declare state `name`; its states are named."""
    if name not in state.kinds:
        states = ", ".join(sorted(state_name for state_name in state.kinds if not state_name.startswith("_"))) or "none"
        raise JobRejected("unknown-state", uid, f"it has no state {name!r}; its states: {states}")
