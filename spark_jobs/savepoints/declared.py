"""The states that an operator or source of a job declares; found by opening it without rows."""

from __future__ import annotations

from runtime.core.job.graph import Role
from runtime.core.job.ids import OperatorId, Token
from runtime.core.job.key_groups import key_group_range
from runtime.dataflow.plan import CompiledJob
from runtime.errors import JobRejected, OperatorFailure, WeirError
from runtime.ports import OperatorContext
from runtime.state.backend import SubtaskState


def declared_state(job: CompiledJob, uid: str) -> SubtaskState:
    """The empty state of the operator at parallelism 1.

    Raises:
        JobRejected: the operator is unknown, or is a sink.
        OperatorFailure: the operator cannot be opened.
    """
    known = [operator.uid for operator in job.graph.operators]
    if uid not in known:
        raise JobRejected("unknown-operator", uid, f"the job has no operator {uid!r}, only {', '.join(known)}")
    name, groups = OperatorId(uid), job.graph.max_parallelism
    role = job.graph.by_uid[name].role
    if role is Role.SINK:
        raise JobRejected("cannot-bootstrap", uid, "a sink has no state that can be written")
    state = SubtaskState(key_group_range(0, groups, 1), groups, None)
    context = OperatorContext(
        job=job.name, uid=uid, index=0, parallelism=1, max_parallelism=groups, token=Token(0), state=state,
        now_ms=lambda: 0,
    )  # fmt: skip
    code = job.sources[name].reader() if role is Role.SOURCE else job.operators[name]()
    try:
        code.open(context)
    except WeirError:
        raise
    except Exception as error:
        raise OperatorFailure(uid, 0, "open", error) from error
    finally:
        code.close()
    return state


def check_state(state: SubtaskState, uid: str, name: str) -> None:
    """Raises JobRejected: the operator does not declare state `name`; its states are named."""
    if name not in state.kinds:
        own = ", ".join(sorted(known for known in state.kinds if not known.startswith("_"))) or "none"
        raise JobRejected("unknown-state", uid, f"it has no state {name!r}; its states: {own}")
